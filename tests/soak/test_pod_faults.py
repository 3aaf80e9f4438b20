"""What is killed in pods is gone, all at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from soak.aim import Missed
from soak.pod_faults import two_within_200_ms, whole_job_killed
from soak.process import Process
from tests.support.soak_site import FakeJob, FakeSite, aim

NAMES = ("c1", "w0", "w1", "w2")


@pytest.fixture
def mains() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Process 1 of each pod."""
    with ExitStack() as stack:
        found = {}
        for name in NAMES:
            found[name] = stack.enter_context(subprocess.Popen(["sleep", "600"]))
            stack.callback(found[name].kill)
        yield found


def site(mains: dict[str, subprocess.Popen[bytes]]) -> FakeSite:
    return FakeSite(**{name: Process.of(main.pid) for name, main in mains.items()})


def test_a_whole_job_is_killed_with_its_coordinator(
    mains: dict[str, subprocess.Popen[bytes]],
) -> None:
    struck = whole_job_killed(aim(site(mains), FakeJob("w0", "w1", "w2")))
    assert {main.wait(60) for main in mains.values()} == {-9}
    assert struck.pods == NAMES
    assert struck.proof.startswith("process 1 of c1, w0, w1 and w2 is gone, killed within ")


def test_a_busy_machine_does_not_make_the_end_of_a_whole_job_miss(
    mains: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 100.4))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock, 100.4))
    fault = aim(site(mains), FakeJob("w0", "w1", "w2"))
    assert "killed within 400.0 ms" in whole_job_killed(fault).proof


def test_two_that_are_killed_too_far_apart_are_missed_and_named_as_hit(
    mains: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 100.4))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock, 100.4))
    with pytest.raises(Missed, match=r"did not end together \(0\.400 s\)") as missed:
        two_within_200_ms(aim(site(mains), FakeJob("w0", "w1", "w2")))
    assert missed.value.pods == ("w0", "w1")


def test_nothing_is_killed_where_no_worker_trains(
    mains: dict[str, subprocess.Popen[bytes]],
) -> None:
    with pytest.raises(Missed, match="no worker trains"):
        whole_job_killed(aim(site(mains), FakeJob()))
    assert {main.poll() for main in mains.values()} == {None}


def test_nothing_is_killed_where_a_pod_has_no_process(
    mains: dict[str, subprocess.Popen[bytes]],
) -> None:
    with pytest.raises(LookupError):
        whole_job_killed(aim(site(mains), FakeJob("w0", "w1", "w2", "w3")))
    assert {main.poll() for main in mains.values()} == {None}
