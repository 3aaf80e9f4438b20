"""What becomes of steps whose loss is not finite."""

from __future__ import annotations

import pytest

from regroup_trainer.errors import NonFiniteError
from regroup_trainer.step.finiteness import MOST_IN_A_ROW, Finiteness


def test_skipped_steps_are_counted_and_forgiven_as_long_as_others_come_between() -> None:
    finiteness = Finiteness("skip")
    for step in range(1, 4 * MOST_IN_A_ROW):
        finiteness.note(step, updated=step % MOST_IN_A_ROW == 0)
    assert finiteness.skipped == 4 * MOST_IN_A_ROW - 1 - 3


def test_too_many_in_a_row_stop_the_run_and_are_named() -> None:
    finiteness = Finiteness("skip")
    finiteness.note(6, updated=True)
    for step in range(7, 16):
        finiteness.note(step, updated=False)
    with pytest.raises(NonFiniteError, match=r"steps 7 to 16: .* not finite in 10 steps in a row"):
        finiteness.note(16, updated=False)


def test_the_first_one_stops_a_run_that_asked_for_it() -> None:
    finiteness = Finiteness("stop")
    finiteness.note(1, updated=True)
    with pytest.raises(NonFiniteError, match=r"step 2: .*training\.nonFinite is 'stop'"):
        finiteness.note(2, updated=False)
