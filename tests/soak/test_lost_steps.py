"""What was lost is found from outside; what the status says of it is compared, never believed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from soak.evidence import Hit, Sample
from tests.support.soak_job import SECOND, Json, Written, line

ONE_OF_THREE = Hit(10.0, frozenset({1}), 3, frozenset({"w1"}))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A job whose volume was full while it made step 11 to 259, and which began anew at step 10."""
    made = Written(tmp_path)
    made.links[1]["resumed_from_step"] = 10
    made.second = [line(step, SECOND) for step in range(11, 15)]
    made.began[SECOND] = 100.0
    made.change(copy_size=1, hits=(ONE_OF_THREE,), commits=commits(range(1, 260)))
    made.change(**status(lost=249, unflushed=249))
    return made


def status(*, lost: int, unflushed: int) -> Json:
    """What it says of the second generation's begin."""
    recovery = {"generation": "1.2", "resumedFromStep": 10, "unflushedSteps": unflushed}
    return {
        "status": {"goodput": {"lostSteps": lost}, "progress": {"step": 14}},
        "recoveries": ({**recovery, "lostSteps": lost},),
    }


def commits(steps: Iterable[int], since: float = 0.6) -> tuple[Sample, ...]:
    """Ten steps a second, from then on."""
    return tuple(Sample(since + step / 10, step) for step in steps)


@pytest.mark.parametrize("seen", [commits(range(1, 260)), None], ids=["seen", "only admitted"])
def test_lost_steps_that_the_status_calls_unflushed_are_lost(
    seen: tuple[Sample, ...] | None, written: Written
) -> None:
    written.change(commits=seen)
    verdict = written.verdict()
    assert (verdict.lost_whole_copies, verdict.mismatches) == (249, ())
    assert [(loss.known, loss.resumed_from) for loss in verdict.lost] == [(259, 10)]


def test_lost_steps_that_only_a_soak_has_seen_are_lost_and_a_lie(written: Written) -> None:
    written.change(**status(lost=0, unflushed=0))
    verdict = written.verdict()
    assert verdict.lost_whole_copies == 249
    (found,) = verdict.mismatches
    assert found == (
        "step 229 was seen to be committed before generation (1, 2) resumed from step 10; the "
        "history ends at step 10, and the status knows of 0 unflushed steps"
    )


@pytest.mark.parametrize("generation", ["", "1.9"])
def test_unflushed_steps_of_no_generation_are_a_lie(generation: str, written: Written) -> None:
    found = status(lost=249, unflushed=249)
    found["recoveries"][0]["generation"] = generation
    written.change(commits=None, **found)
    assert written.verdict().mismatches == (
        "the status calls 249 steps unflushed of generations that never began",
    )


def test_unflushed_steps_of_shards_may_be_no_more_than_snapshots_allow(written: Written) -> None:
    written.change(copy_size=None, snapshot_steps=20)
    verdict = written.verdict()
    assert (verdict.lost_whole_copies, verdict.lost_over_interval) == (0, 249 - 2 * 20)


def test_no_status_can_know_of_steps_that_were_made_after_the_last_report(
    written: Written,
) -> None:
    written.change(copy_size=None, snapshot_steps=200, **status(lost=220, unflushed=220))
    verdict = written.verdict()
    assert verdict.is_clean, verdict
    written.change(**status(lost=218, unflushed=218))
    assert "step 229 was seen to be committed" in written.verdict().mismatches[0]


def test_steps_of_the_generation_itself_were_not_lost_by_it(written: Written) -> None:
    written.change(
        commits=(*commits(range(1, 11)), *commits(range(11, 15), since=99.5)),
        **status(lost=0, unflushed=0),
    )
    assert written.verdict().is_clean, written.verdict()


def test_a_copy_of_records_that_lost_their_times_makes_no_losses(written: Written) -> None:
    written.began = dict.fromkeys(written.began, 1e6)
    written.change(**status(lost=0, unflushed=0))
    assert written.verdict().is_clean, written.verdict()


def test_what_a_generation_without_a_record_has_lost_is_not_forgotten(written: Written) -> None:
    """It restored its state, and died before it could begin."""
    found = status(lost=249, unflushed=200)
    between = {"generation": "1.1", "resumedFromStep": 10, "unflushedSteps": 49}
    written.links[1]["generation"] = written.second[0]["generation"] = [1, 3]
    for one in written.second:
        one["generation"] = [1, 3]
    written.began[1, 3] = 100.0
    later = {**found["recoveries"][0], "generation": "1.3"}
    written.change(**{**found, "recoveries": ({**between, "generation": "1.2"}, later)})
    assert written.verdict().lost_whole_copies == 249


def test_a_fault_before_a_long_recovery_explains_steps_that_the_history_lacks(
    written: Written,
) -> None:
    all_ranks = Hit(26.6, frozenset({0, 1, 2}), 3)
    written.change(hits=(all_ranks,), checkpoint_steps=200, excused=((26.0, 101.0),))
    verdict = written.verdict()
    assert (verdict.lost_whole_copies, verdict.lost_over_interval) == (0, 249 - 2 * 5)
    written.links[1]["from_checkpoint"] = True
    assert written.verdict().lost_over_interval == 0


def test_a_job_of_which_no_commit_was_seen_is_not_clean(written: Written) -> None:
    written.change(commits=(), **status(lost=0, unflushed=0))
    assert written.verdict().mismatches == ("no commit of a rank was ever seen",)
    written.change(commits=None)
    assert written.verdict().is_clean, "a former soak did not look"
