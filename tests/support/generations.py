"""Hellos, places, records and reports of generations with valid defaults."""

from __future__ import annotations

from collections.abc import Sequence

from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, MemberRecord
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import CheckpointSaved
from tests.support.coordinator_simulation import make_desired


def make_hello(index: int = 0, **changes: object) -> Hello:
    """The hello of an agent with one rank, on a node of its own."""
    fields: dict[str, object] = {
        "protocol": PROTOCOL_VERSION,
        "member": f"uid-{index}",
        "index": index,
        "pod": f"gpt-w{index}-0",
        "node": f"node-{index}",
        "ranks": 1,
        "store": f"10.0.0.{index}:3000",
    }
    return Hello.model_validate({**fields, **changes})


def make_generation(term: int, n: int) -> GenerationRecord:
    """A generation of two workers."""
    number = GenerationNumber(term, n)
    return make_record(number, (make_hello(0), make_hello(1)), make_desired(), ("Nothing", "test"))


def make_places(nodes: Sequence[str], ranks: int = 1) -> tuple[MemberRecord, ...]:
    """A member on each of these nodes, in rank order."""
    return tuple(
        MemberRecord(
            member=f"m{n}", index=n, pod=f"p{n}", node=node, first_rank=n * ranks, ranks=ranks
        )
        for n, node in enumerate(nodes)
    )


def make_saved(generation: GenerationNumber, step: int, rank: int = 0) -> CheckpointSaved:
    """The report that a generation has published the checkpoint of `step`."""
    return CheckpointSaved(
        generation=generation,
        rank=rank,
        step=step,
        path="p",
        size_bytes=1,
        seconds=1.0,
        blocking_seconds=0.0,
        time=1.0,
    )
