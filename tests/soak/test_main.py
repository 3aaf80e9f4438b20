"""What a run keeps, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from soak import __main__ as program
from soak import results
from soak.campaign import Campaign
from soak.memory_growth import Growth
from soak.reference import Reference
from soak.site import Site
from tests.support.soak_site import FakeSite


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(Site, "up", no_cluster)
    return tmp_path


def no_cluster(*_: object) -> Site:
    """A run that is not refused would start one."""
    raise AssertionError("a cluster would have been started")


@pytest.mark.parametrize("left", ["seed-7.jsonl", "seed-7/seen.json"])
def test_a_run_with_the_seed_of_a_former_one_is_refused(left: str, build: Path) -> None:
    (build / left).parent.mkdir(exist_ok=True)
    (build / left).write_text("kept")
    done = CliRunner().invoke(program.main, ["run", "--seed", "7", "--faults", "1"])
    assert done.exit_code == 1
    assert "of a former run with seed 7: choose another seed, or move" in done.output
    assert (build / left).read_text() == "kept"


def interrupt(campaign: Campaign) -> None:
    try:
        raise KeyboardInterrupt
    finally:
        program._finish(7, "abc", campaign, 2)


def test_a_part_lists_the_faults_that_were_missed_and_those_that_nobody_judged(
    build: Path,
) -> None:
    site = cast(Site, FakeSite())
    campaign = Campaign(site, build / "seed-7.jsonl", print, Reference(site, print))
    campaign.log.touch()
    campaign.missed.append({"kind": "etcd-away", "time": 1.0, "reason": "etcd does not run"})
    campaign.unjudged.append({"kind": "pod-deleted", "time": 2.0, "proof": "it is gone"})
    with pytest.raises(KeyboardInterrupt):
        interrupt(campaign)
    part = results.read_part(build / "seed-7.json")
    assert part["missed"] == campaign.missed
    assert (part["commit"], part["checker"]) == ("abc", "abc")
    (unjudged,) = part["unjudged"]
    assert (unjudged["kind"], unjudged["time"]) == ("pod-deleted", 2.0)
    assert unjudged["reason"] == (
        "the run ended before its episode was judged: KeyboardInterrupt()"
    )
    assert part["metrics"]["faults"] == 0


def test_a_leak_makes_a_run_fail(capsys: pytest.CaptureFixture[str]) -> None:
    leaking = Growth(count=40, total=4.0, squares=0.4)
    with pytest.raises(SystemExit, match="1"):
        program._end([], {"operator": leaking, "worker": Growth()})
    assert "memory of operator: 10.0 MB more per 100 faults" in capsys.readouterr().out
    program._end([], {"worker": Growth()})
