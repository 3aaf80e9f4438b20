"""The ladder: which rung is taken for what members hold."""

from __future__ import annotations

import pytest

from regroup_trainer.contract import GenerationNumber, Kept, Rung, SnapshotNumber
from regroup_trainer.recovery import Holding, Situation, choose_rung


def number(step: int, n: int = 1, shards: int = 2) -> SnapshotNumber:
    return SnapshotNumber(step, GenerationNumber(1, n), shards)


def make_holding(
    member: str, shard: int, *, of: int = 1, step: int | None = 50, prepared: bool = False, snapshot: int | None = 40
) -> Holding:
    """A survivor that owns one of so many shards alive at `step` and keeps a snapshot of it."""
    return Holding(
        member,
        live=(Kept(step=step, prepared=prepared, shard=shard, shards=of),) if step is not None else (),
        snapshots=frozenset({(number(snapshot), shard)}) if snapshot is not None else frozenset(),
    )


@pytest.mark.parametrize(
    ("holdings", "started", "rung"),
    [
        pytest.param([Holding("a")], False, "start", id="nothing was trained yet"),
        pytest.param([make_holding("a", 0, of=2), make_holding("b", 1, of=2)], True, "L0", id="every shard lives"),
        pytest.param([make_holding("a", 0), Holding("b")], True, "L0", id="a replica for a joiner"),
        pytest.param([make_holding("a", 0, step=None), make_holding("b", 1, of=2)], True, "L1", id="one shard died"),
        pytest.param(
            [make_holding("a", 0, of=2, step=49), make_holding("b", 1, of=2)], True, "L1", id="shards of two steps"
        ),
        pytest.param(
            [make_holding("a", 0, of=2, step=49, prepared=True), make_holding("b", 1, of=2)],
            True,
            "L0",
            id="a shard that was prepared for the step",
        ),
        pytest.param([make_holding("a", 0, step=None)], True, "L2", id="a snapshot is missing"),
        pytest.param([make_holding("a", 0, step=None, snapshot=None)], True, "L2", id="only lives are left"),
        pytest.param([], True, "L2", id="everybody is new"),
    ],
)
def test_takes_the_cheapest_rung_that_is_safe(holdings: list[Holding], started: bool, rung: Rung) -> None:
    assert choose_rung(Situation(tuple(holdings), started))[0] == rung


def test_a_lagging_replica_does_not_prevent_the_first_rung() -> None:
    situation = Situation((make_holding("a", 0, step=51), make_holding("b", 0, step=50)), started=True)
    assert choose_rung(situation) == ("L0", "every shard lives at step 51")


def test_snapshots_of_two_steps_use_the_newest_whole_one() -> None:
    kept = frozenset({(number(40), 0), (number(40), 1), (number(50), 0)})
    situation = Situation((Holding("a", snapshots=kept),), started=True)
    assert choose_rung(situation) == ("L1", "the memory snapshot of step 40 is whole")


def test_shards_of_two_generations_make_no_snapshot() -> None:
    kept = frozenset({(number(40, n=1), 0), (number(40, n=2), 1)})
    assert choose_rung(Situation((Holding("a", snapshots=kept),), started=True))[0] == "L2"


def test_the_parts_of_a_snapshot_are_those_of_the_world_that_took_it() -> None:
    kept = frozenset((number(40, shards=3), shard) for shard in range(3))
    assert choose_rung(Situation((Holding("a", snapshots=kept),), started=True))[0] == "L1"


def test_a_rung_that_failed_falls_to_the_next() -> None:
    situation = Situation((make_holding("a", 0), make_holding("b", 1)), started=True)
    assert [choose_rung(situation, excluded)[0] for excluded in ((), ("L0",), ("L0", "L1"))] == ["L0", "L1", "L2"]


def test_the_last_rung_cannot_be_excluded() -> None:
    with pytest.raises(ValueError, match="no rung is left"):
        choose_rung(Situation((), started=True), excluded=("L2",))
