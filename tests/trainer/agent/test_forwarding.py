"""Which reports go out when."""

from __future__ import annotations

from regroup_trainer.agent.forwarding import Forwarder
from regroup_trainer.contract import Finished, GenerationNumber, Progress, Restored

NUMBER = GenerationNumber(1, 1)


def progress(step: int, rank: int = 0) -> Progress:
    """A committed step."""
    return Progress(generation=NUMBER, rank=rank, step=step, time=0.0)


def test_of_progress_the_newest_goes_five_times_a_second() -> None:
    forwarder = Forwarder()
    sent = [report for k in range(1000) for report in forwarder.offer(progress(k), 0.001 * k)]
    assert len(sent) == 5
    assert forwarder.due(2.0) == [progress(999)]
    assert forwarder.due(2.0) == []


def test_the_first_step_after_a_restored_state_goes_at_once() -> None:
    forwarder = Forwarder()
    assert forwarder.offer(progress(9), 0.0) == [progress(9)]
    restored = Restored(generation=NUMBER, rank=0, step=5)
    assert forwarder.offer(restored, 0.01) == [restored]
    assert forwarder.offer(progress(6), 0.02) == [progress(6)]


def test_held_progress_goes_before_what_follows_it() -> None:
    forwarder = Forwarder()
    forwarder.offer(progress(1), 0.0)
    assert forwarder.offer(progress(2), 0.01) == []
    end = Finished(generation=NUMBER, rank=0, step=2, reason="completed")
    assert forwarder.offer(end, 0.02) == [progress(2), end]


def test_ranks_do_not_hold_each_other_back() -> None:
    forwarder = Forwarder()
    assert forwarder.offer(progress(1, rank=0), 0.0) == [progress(1, rank=0)]
    assert forwarder.offer(progress(1, rank=1), 0.0) == [progress(1, rank=1)]


def test_nothing_of_an_old_generation_is_left_after_a_reset() -> None:
    forwarder = Forwarder()
    forwarder.offer(progress(1), 0.0)
    forwarder.offer(progress(2), 0.01)
    forwarder.reset()
    assert forwarder.due(10.0) == []
