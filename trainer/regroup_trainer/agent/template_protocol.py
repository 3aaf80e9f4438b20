"""The messages between an agent and its template process: one JSON object a line, over a socket."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.protocol.message import Message, Text
from regroup_trainer.protocol.rank_messages import ScriptStep


class StartStore(Message):
    """Fork the store process."""

    kind: Literal["start_store"] = "start_store"
    address: str
    """The pod's own address, by which others reach the store."""


class ForkRank(Message):
    """Fork a process for the rank of `assignment`. Its end comes back as RankEnded."""

    kind: Literal["fork_rank"] = "fork_rank"
    assignment: Assignment
    threads: int
    """For the tensor operations of the rank."""


class ReassignedRank(Message):
    """A rank process that goes on, maybe as another rank."""

    rank: int
    """Its rank so far."""
    assignment: Assignment
    """Its assignment from now on."""


class KillRanks(Message):
    """SIGKILL every rank, with the processes that it started, except those in `retained`."""

    kind: Literal["kill_ranks"] = "kill_ranks"
    retained: tuple[ReassignedRank, ...] = ()


class TerminateRanks(Message):
    """SIGTERM these ranks: they run a program that receives no other order."""

    kind: Literal["terminate_ranks"] = "terminate_ranks"
    ranks: tuple[int, ...]


class ShowStacks(Message):
    """Have each of these ranks write its stacks into its `stacks.stack_file`."""

    kind: Literal["show_stacks"] = "show_stacks"
    ranks: tuple[int, ...]


class EndWithRanks(Message):
    """End as soon as all ranks have ended, and what they wrote is passed on."""

    kind: Literal["end_with_ranks"] = "end_with_ranks"


Order = Annotated[
    StartStore | ForkRank | KillRanks | TerminateRanks | ShowStacks | EndWithRanks,
    Field(discriminator="kind"),
]
order: TypeAdapter[Order] = TypeAdapter(Order)


class Ready(Message):
    """All imports are done: forks are cheap from now on."""

    kind: Literal["ready"] = "ready"


class StoreStarted(Message):
    """The store listens."""

    kind: Literal["store_started"] = "store_started"
    port: int


class StoreEnded(Message):
    """The store process is gone."""

    kind: Literal["store_ended"] = "store_ended"


class RankStarted(Message):
    """A rank process runs. It keeps its local rank as long as it lives."""

    kind: Literal["rank_started"] = "rank_started"
    local_rank: int
    pid: int


class RankEnded(Message):
    """A rank process ended, by itself or killed."""

    kind: Literal["rank_ended"] = "rank_ended"
    generation: GenerationNumber
    rank: int
    exit_code: int
    """128 + signal when a signal ended it."""
    signal: int | None = None
    stderr_tail: Text = ""
    """The end of its standard error."""
    killed: bool = False
    """By an order of the agent."""
    step: int = 0
    """Its last commit, reported or not; 0: none."""
    time: float = 0.0
    """Wall clock of that commit."""


TemplateNews = Annotated[
    Ready | StoreStarted | StoreEnded | ScriptStep | RankStarted | RankEnded,
    Field(discriminator="kind"),
]
"""`ScriptStep`: rank 0 has written a line that `spec.progressPattern` matches."""
template_news: TypeAdapter[TemplateNews] = TypeAdapter(TemplateNews)
