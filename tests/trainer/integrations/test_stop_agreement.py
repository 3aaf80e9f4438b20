"""Ranks save and stop at the same step."""

from __future__ import annotations

import signal

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.stop_agreement import StopAgreement, require_joined


def test_a_save_is_due_every_so_many_steps() -> None:
    agreement = StopAgreement(every_steps=2, every_seconds=None)
    found = [agreement.after(step).save for step in range(1, 7)]
    agreement.close()
    assert found == [False, True, False, True, False, True]


def test_a_save_by_time_is_due_after_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    agreement = StopAgreement(every_steps=None, every_seconds=10)
    found = []
    for step, seconds in enumerate((1, 8, 1, 1, 1, 1), start=1):
        now[0] += seconds
        found.append(agreement.after(step).save)
    agreement.close()
    assert found == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("steps", "seconds", "words"),
    [(0, None, "every_steps: 0: give a number above 0"), (None, -1.0, "every_seconds: -1.0: give")],
)
def test_no_save_is_ever_due_after_nothing(
    steps: int | None, seconds: float | None, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        StopAgreement(steps, seconds)


def test_the_signal_is_given_back_at_the_end() -> None:
    former = signal.getsignal(signal.SIGTERM)
    StopAgreement(1, None).close()
    assert signal.getsignal(signal.SIGTERM) is former


def test_ranks_that_have_not_joined_are_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="WORLD_SIZE: 2 ranks were started, and did not"):
        require_joined("call join()")
    monkeypatch.setenv("WORLD_SIZE", "1")
    require_joined("call join()")
