"""Which source the state comes from, by what members hold."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.generation import GenerationNumber, RestoredFrom, SnapshotNumber
from regroup_trainer.protocol.rank_messages import Retained
from regroup_trainer.protocol.restore_source import Holding, RestoreContext, choose_source


def number(step: int, n: int = 1, shards: int = 2) -> SnapshotNumber:
    return SnapshotNumber(step, GenerationNumber(1, n), shards)


def make_holding(
    member: str,
    shard: int,
    *,
    of: int = 1,
    step: int | None = 50,
    prepared: bool = False,
    snapshot: int | None = 40,
) -> Holding:
    """A member whose live rank holds one of `of` shards at `step`, and a snapshot of it."""
    return Holding(
        member,
        live=(Retained(step=step, prepared=prepared, shard=shard, shards=of),)
        if step is not None
        else (),
        snapshots=frozenset({(number(snapshot), shard)}) if snapshot is not None else frozenset(),
    )


@pytest.mark.parametrize(
    ("holdings", "started", "restored_from"),
    [
        pytest.param([Holding("a")], False, "Nothing", id="nothing was trained yet"),
        pytest.param(
            [make_holding("a", 0, of=2), make_holding("b", 1, of=2)],
            True,
            "Peers",
            id="every shard is in a live rank",
        ),
        pytest.param(
            [make_holding("a", 0), Holding("b")], True, "Peers", id="a replica for a joiner"
        ),
        pytest.param(
            [make_holding("a", 0, step=None), make_holding("b", 1, of=2)],
            True,
            "Snapshot",
            id="one shard died",
        ),
        pytest.param(
            [make_holding("a", 0, of=2, step=49), make_holding("b", 1, of=2)],
            True,
            "Snapshot",
            id="shards of two steps",
        ),
        pytest.param(
            [make_holding("a", 0, of=2, step=49, prepared=True), make_holding("b", 1, of=2)],
            True,
            "Peers",
            id="a shard that was prepared for the step",
        ),
        pytest.param(
            [make_holding("a", 0, step=None)], True, "Checkpoint", id="a snapshot is missing"
        ),
        pytest.param(
            [make_holding("a", 0, step=None, snapshot=None)],
            True,
            "Checkpoint",
            id="only lives are left",
        ),
        pytest.param([], True, "Checkpoint", id="everybody is new"),
    ],
)
def test_takes_the_cheapest_source_that_is_safe(
    holdings: list[Holding], started: bool, restored_from: RestoredFrom
) -> None:
    assert choose_source(RestoreContext(tuple(holdings), started))[0] == restored_from


def test_a_lagging_replica_does_not_prevent_recovery_from_peers() -> None:
    context = RestoreContext(
        (make_holding("a", 0, step=51), make_holding("b", 0, step=50)), started=True
    )
    assert choose_source(context) == ("Peers", "live ranks hold every shard at step 51")


def test_snapshots_of_two_steps_use_the_newest_whole_one() -> None:
    kept = frozenset({(number(40), 0), (number(40), 1), (number(50), 0)})
    context = RestoreContext((Holding("a", snapshots=kept),), started=True)
    assert choose_source(context) == ("Snapshot", "the memory snapshot of step 40 is whole")


def test_shards_of_two_generations_make_no_snapshot() -> None:
    kept = frozenset({(number(40, n=1), 0), (number(40, n=2), 1)})
    assert (
        choose_source(RestoreContext((Holding("a", snapshots=kept),), started=True))[0]
        == "Checkpoint"
    )


def test_the_shards_of_a_snapshot_are_those_of_the_generation_that_took_it() -> None:
    kept = frozenset((number(40, shards=3), shard) for shard in range(3))
    assert (
        choose_source(RestoreContext((Holding("a", snapshots=kept),), started=True))[0]
        == "Snapshot"
    )


def test_a_source_that_failed_is_followed_by_the_next() -> None:
    context = RestoreContext((make_holding("a", 0), make_holding("b", 1)), started=True)
    assert [
        choose_source(context, excluded)[0] for excluded in ((), ("Peers",), ("Peers", "Snapshot"))
    ] == [
        "Peers",
        "Snapshot",
        "Checkpoint",
    ]


def test_the_checkpoint_cannot_be_excluded() -> None:
    with pytest.raises(ValueError, match="no source is left"):
        choose_source(RestoreContext((), started=True), excluded=("Checkpoint",))
