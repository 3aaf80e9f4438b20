"""What a fault may cost follows from what it left: copies in ranks, in agents, on the volume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from soak.allowed_losses import a_copy_lived, newest_left
from soak.evidence import Hit, Kept, Sample, WholeSnapshot
from soak.records import Number, Stored
from soak.replay import Loss
from tests.support.soak_job import FIRST, SECOND, Written, line

HOLDERS = (frozenset({"w0", "w1"}), frozenset({"w1", "w2"}), frozenset({"w2", "w0"}))
"""Three shards, each on two workers."""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Its second generation lost steps 9 and 10, and resumed from a snapshot of step 8."""
    return Written(tmp_path)


def kept(
    *snapshots: int, checkpoints: tuple[int, ...] = (), ended: float = 9.5, made_by: Number = FIRST
) -> Kept:
    """What was seen of whole snapshots and of checkpoints, of these steps."""
    stored = {step: Stored(step, made_by) for step in (*snapshots, *checkpoints)}
    whole = tuple(WholeSnapshot(stored[step], HOLDERS) for step in snapshots)
    return Kept(ended - 0.1, ended, whole, tuple(stored[step] for step in checkpoints))


def hit(moment: float, *ranks: int) -> Hit:
    """A fault that took these of three workers."""
    return Hit(moment, frozenset(ranks), 3, frozenset(f"w{rank}" for rank in ranks))


def test_a_lost_step_of_whole_copies_counts_and_one_of_shards_beyond_its_snapshots(
    written: Written,
) -> None:
    written.change(copy_size=1)
    assert written.verdict().lost_whole_copies == 2
    written.change(copy_size=None, snapshot_steps=1)
    assert written.verdict().lost_over_interval == 0
    written.change(snapshot_steps=0)
    assert written.verdict().lost_over_interval == 2


@pytest.mark.parametrize(
    ("copy_size", "dead", "lived"),
    [
        (1, {0, 1}, True),
        (1, {0, 1, 2, 3}, False),
        (2, {0, 1}, True),
        (2, {0, 2}, False),
        (2, {0, 3}, True),  # ranks 2 and 1 have the parts of these
    ],
)
def test_a_copy_lived_if_each_part_of_it_was_spared_shortly_before(
    copy_size: int, dead: set[int], lived: bool, written: Written
) -> None:
    loss = Loss(SECOND, 10, 8, False, time=1000.0)
    hits = [Hit(1000.0 - 5 * place, frozenset({rank}), 4) for place, rank in enumerate(dead)]
    evidence = replace(written.evidence, copy_size=copy_size, hits=tuple(hits), samples=())
    assert a_copy_lived(evidence, loss) == lived
    long_ago = tuple(replace(hit, time=900.0) for hit in hits)
    assert a_copy_lived(replace(evidence, hits=long_ago), loss)


@pytest.mark.parametrize("size", [1, 2])
def test_a_copy_that_was_restored_between_two_hits_was_alive(size: int, written: Written) -> None:
    """Ranks are hit at seconds 985 and 994, and steps are lost at 1000."""
    loss = Loss((1, 3), 14, 8, False, time=1000.0)
    first, second = ((0,), (2,)) if size == 2 else ((0,), (1, 2, 3))
    hits = tuple(
        Hit(moment, frozenset(ranks), 4) for moment, ranks in ((985.0, first), (994.0, second))
    )

    def lived(began: float) -> bool:
        written.began = {FIRST: 900.0, SECOND: began}
        evidence = replace(written.written(), copy_size=size, hits=hits, samples=())
        return a_copy_lived(evidence, loss)

    assert lived(began=986.0)
    assert not lived(began=984.0), "both hit the same generation"
    assert lived(began=995.0), "nothing was hit since"
    written.second = []
    assert not lived(began=986.0), "nobody knows that its ranks had the state"


def test_a_fault_that_strikes_late_explains_what_the_generation_that_it_hit_has_lost(
    written: Written,
) -> None:
    """The last step is seen at second 960, the loss at 1000."""
    loss = Loss(SECOND, 10, 8, False, time=1000.0)

    def lived(struck: float, began: float) -> bool:
        written.began = {FIRST: began, SECOND: 1000.0}
        evidence = replace(written.written(), copy_size=1, samples=(Sample(960.0, 10),))
        return a_copy_lived(replace(evidence, hits=(hit(struck, 0, 1, 2),)), loss)

    assert not lived(940.0, began=900.0)
    assert lived(929.0, began=900.0), "half a minute of steps came after it"
    assert lived(940.0, began=950.0), "it hit the generation before"


def test_a_job_that_goes_on_from_the_newest_whole_snapshot_lost_no_more_than_it_may(
    written: Written,
) -> None:
    written.change(kept=(kept(4, 8),), hits=(hit(10.0, 1),))
    assert written.verdict().is_clean, written.verdict()


def test_a_whole_snapshot_that_the_fault_left_must_not_be_passed_over(written: Written) -> None:
    written.change(kept=(kept(9),), hits=(hit(10.0, 1),))
    assert written.verdict().lost_over_interval == 1


def test_a_snapshot_of_which_a_shard_is_gone_need_not_be_used(written: Written) -> None:
    written.change(
        kept=(kept(9),),
        hits=(
            hit(9.9, 0),
            hit(10.0, 1),
        ),
    )
    assert written.verdict().lost_over_interval == 0


def test_where_no_snapshot_is_left_the_newest_checkpoint_counts(written: Written) -> None:
    written.change(hits=(hit(10.0, 0, 1),), kept=(kept(10, checkpoints=(5, 8)),))
    assert written.verdict().lost_over_interval == 0
    written.change(kept=(kept(10, checkpoints=(5, 9)),))
    assert written.verdict().lost_over_interval == 1


@pytest.mark.parametrize(
    "seen",
    [
        kept(9, ended=10.2),
        kept(9, ended=0.4),
        kept(9, made_by=(1, 0)),
    ],
    ids=["after the fault", "before the generation began", "of a line that was abandoned"],
)
def test_a_snapshot_that_the_generation_cannot_have_used_does_not_count(
    seen: Kept, written: Written
) -> None:
    written.change(kept=(seen,), hits=(hit(10.0, 1),))
    assert written.verdict().lost_over_interval == 0


def test_a_loss_without_a_fault_is_measured_at_the_last_step_before_it(written: Written) -> None:
    loss = Loss(SECOND, 10, 8, False, time=10.5)
    written.change(
        kept=(
            kept(9),
            kept(10, ended=10.2),
        )
    )
    assert newest_left(written.written(), loss) == 9


def test_faults_of_a_recovery_that_takes_long_explain_what_it_lost(written: Written) -> None:
    written.began[SECOND] = 200.0
    later = [Sample(200.0 + step, step) for step in range(11, 15)]
    written.change(
        samples=(*written.evidence.samples[:10], *later),
        kept=(kept(9),),
        hits=(hit(10.0, 0, 1),),
        excused=((10.0, 210.0),),
    )
    assert written.verdict().is_clean, written.verdict()


@pytest.mark.parametrize(("checkpoint_steps", "over"), [(5, 0), (4, 2)])
def test_a_job_of_which_nothing_is_left_begins_anew_if_no_checkpoint_was_due(
    checkpoint_steps: int, over: int, written: Written
) -> None:
    written.links[1]["resumed_from_step"] = 0
    written.second[:0] = [line(step, SECOND) for step in range(1, 9)]
    all_ranks = hit(10.0, 0, 1, 2)
    written.change(copy_size=1, snapshot_steps=1, checkpoint_steps=checkpoint_steps)
    written.change(hits=(all_ranks,), kept=(kept(9),))
    verdict = written.verdict()
    assert (verdict.lost_whole_copies, verdict.lost_over_interval) == (0, over)


def test_where_all_copies_died_no_step_before_the_newest_checkpoint_may_be_lost(
    written: Written,
) -> None:
    written.links[1]["from_checkpoint"] = True
    written.change(copy_size=1, checkpoint_steps=8, hits=(hit(10.0, 0, 1, 2),))
    written.change(kept=(kept(10, checkpoints=(8,)),))
    assert written.verdict().is_clean, written.verdict()
    written.change(kept=(kept(10, checkpoints=(8, 9)),))
    assert written.verdict().lost_over_interval == 1


@pytest.mark.parametrize(
    ("refused", "over"),
    [
        ((), 6),
        (((4.0, 8.5),), 1),  # steps 5 to 8, and an interval
        (((4.0, 8.5), (11.0, 12.0)), 1),  # nothing of the second one was lost
        (((3.0, 3.5), (4.0, 8.5)), 1),  # no step of the first one
        (((3.0, 4.5), (5.0, 8.5)), 0),  # steps 4, and 6 to 8, and an interval each
    ],
)
def test_steps_made_while_the_volume_took_no_files_come_onto_it_an_interval_later(
    refused: tuple[tuple[float, float], ...], over: int, written: Written
) -> None:
    written.links[1]["resumed_from_step"] = 2
    written.links[1]["from_checkpoint"] = True
    written.second[:0] = [line(step, SECOND) for step in range(3, 9)]
    written.change(copy_size=1, checkpoint_steps=1, hits=(hit(10.0, 0, 1, 2),), refusals=refused)
    written.change(commits=tuple(Sample(float(step), step) for step in range(1, 15)))
    assert written.verdict().lost_over_interval == over


def test_a_script_of_torchrun_saves_before_it_goes_on(written: Written) -> None:
    written.links[1]["from_checkpoint"] = True
    written.change(is_torchrun=True, checkpoint_steps=1)
    assert written.verdict().lost_over_interval == 1
    written.change(checkpoint_steps=2)
    assert written.verdict().lost_over_interval == 0
