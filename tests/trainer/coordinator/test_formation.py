"""Who is a member of the next generation, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.coordinator.formation import choose, make_record
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello

HELLOS = [make_hello(index) for index in range(6)]


@given(
    st.lists(st.sampled_from(HELLOS), unique_by=lambda hello: hello.index),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_a_choice_is_whole_groups_within_bounds(
    hellos: list[object], replicas: int, group: int
) -> None:
    desired = make_desired(replicas=replicas, min_replicas=1, replica_group_size=group)
    chosen = choose(hellos, None, desired, "nowhere")  # type: ignore[arg-type]
    assert len(chosen) % group == 0
    assert len(chosen) <= min(replicas, 4)
    assert all(hello.index < replicas for hello in chosen)


def test_survivors_keep_their_order_and_joiners_follow() -> None:
    desired = make_desired(replicas=4)
    old = make_record(
        GenerationNumber(1, 1), (HELLOS[2], HELLOS[0], HELLOS[1]), desired, ("Nothing", "")
    )
    chosen = choose([HELLOS[3], HELLOS[1], HELLOS[2]], old, desired, "nowhere")
    assert [hello.index for hello in chosen] == [2, 1, 3]


def test_survivors_keep_their_place_within_a_replica_group() -> None:
    desired = make_desired(replicas=4, replica_group_size=2)
    old = make_record(GenerationNumber(1, 1), HELLOS[:4], desired, ("Nothing", ""))
    assert [hello.index for hello in choose(HELLOS[1:4], old, desired, "nowhere")] == [2, 1]
    back = make_hello(0, member="another")
    assert [hello.index for hello in choose([back, *HELLOS[1:4]], old, desired, "nowhere")] == [
        2,
        1,
        0,
        3,
    ]


def test_rank_zero_stays_when_every_node_is_the_coordinators() -> None:
    here = [make_hello(index, node="n") for index in range(3)]
    assert [hello.index for hello in choose(here, None, make_desired(), "n")] == [0, 1, 2]
