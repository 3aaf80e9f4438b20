"""Ranks save and stop at the same step."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.stop_agreement import StopAgreement, require_joined


def test_a_save_is_due_every_so_many_steps() -> None:
    agreement = StopAgreement(every_steps=2, every_seconds=None)
    found = [agreement.after(step).save for step in range(1, 7)]
    agreement.close()
    assert found == [False, True, False, True, False, True]


def saves(agreement: StopAgreement, steps: list[int]) -> list[int]:
    """The calls, from 1, after which a save is agreed."""
    found = [call for call, step in enumerate(steps, start=1) if agreement.after(step).save]
    agreement.close()
    return found


def test_a_save_is_due_once_a_step_however_often_the_step_is_given() -> None:
    accumulating = [call // 4 for call in range(1, 17)]
    assert saves(StopAgreement(2, None), accumulating) == [8, 16]


def test_a_save_is_due_when_its_step_is_passed_over() -> None:
    assert saves(StopAgreement(25, None), list(range(2, 101, 2))) == [13, 25, 38, 50]


def test_a_run_that_goes_on_has_the_step_that_it_begins_after() -> None:
    assert saves(StopAgreement(20, None, start=40), [40, 40, 41, 41, 60]) == [5]


def test_a_request_waits_for_the_next_step() -> None:
    agreement = StopAgreement(None, None, start=3)
    agreement.after(4)
    os.kill(os.getpid(), signal.SIGTERM)
    found = [agreement.after(step).stop for step in (4, 4, 4, 5)]
    agreement.close()
    assert found == [False, False, False, True]


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


@pytest.mark.parametrize("steps", [0, -1, 2.5, float("nan"), True, "5"])
def test_a_number_of_steps_is_a_whole_number_above_0(steps: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"every_steps: {steps}: give a whole number abo"):
        StopAgreement(steps, None)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_a_time_is_a_number_above_0(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"every_seconds: {seconds}: give a number above"):
        StopAgreement(None, seconds)


def test_a_step_is_a_number() -> None:
    agreement = StopAgreement(1, None)
    with pytest.raises(TypeError, match="step"):
        agreement.after(True)
    agreement.close()


def test_the_signal_is_given_back_at_the_end() -> None:
    former = signal.getsignal(signal.SIGTERM)
    StopAgreement(1, None).close()
    assert signal.getsignal(signal.SIGTERM) is former


def test_ranks_that_have_not_joined_learn_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="WORLD_SIZE: 2 ranks were started, and did not"):
        require_joined("call join()")
    monkeypatch.setenv("WORLD_SIZE", "1")
    require_joined("call join()")
