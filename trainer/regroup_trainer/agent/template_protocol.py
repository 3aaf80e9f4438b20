"""What an agent and its template process say to each other over a socket pair, one JSON object a line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from regroup_trainer.contract import Assignment, GenerationNumber, Message, Text


class StartStore(Message):
    """Fork the store process."""

    kind: Literal["start_store"] = "start_store"
    address: str
    """The pod's own address, under which the store is reached."""


class ForkRank(Message):
    """Fork a rank."""

    kind: Literal["fork_rank"] = "fork_rank"
    assignment: Assignment
    threads: int
    """Of the rank's tensor operations."""


class KeptRank(Message):
    """A rank process that goes on."""

    rank: int
    """As which it was known so far."""
    assignment: Assignment
    """What it is from now on."""


class KillRanks(Message):
    """SIGKILL every rank, and what it started, but those that are kept."""

    kind: Literal["kill_ranks"] = "kill_ranks"
    kept: tuple[KeptRank, ...] = ()


class TerminateRanks(Message):
    """SIGTERM to these ranks: they hear of nothing else."""

    kind: Literal["terminate_ranks"] = "terminate_ranks"
    ranks: tuple[int, ...]


class ShowStacks(Message):
    """Have these ranks write where they are, each into its `stacks.stack_file`."""

    kind: Literal["show_stacks"] = "show_stacks"
    ranks: tuple[int, ...]


Order = Annotated[StartStore | ForkRank | KillRanks | TerminateRanks | ShowStacks, Field(discriminator="kind")]
order: TypeAdapter[Order] = TypeAdapter(Order)


class Ready(Message):
    """Everything is imported; forks are cheap from now on."""

    kind: Literal["ready"] = "ready"


class StoreStarted(Message):
    """The store listens."""

    kind: Literal["store_started"] = "store_started"
    port: int


class StoreEnded(Message):
    """The store process is gone."""

    kind: Literal["store_ended"] = "store_ended"


class RankEnded(Message):
    """A rank process ended, by itself or killed."""

    kind: Literal["rank_ended"] = "rank_ended"
    generation: GenerationNumber
    rank: int
    exit_code: int
    """128 + signal when a signal ended it."""
    signal: int | None = None
    last_words: Text = ""
    """The end of its standard error."""
    killed: bool = False
    """By our own order."""
    step: int = 0
    """Its last commit, told or not; 0: none."""
    time: float = 0.0
    """Wall clock of that commit."""


TemplateNews = Annotated[Ready | StoreStarted | StoreEnded | RankEnded, Field(discriminator="kind")]
template_news: TypeAdapter[TemplateNews] = TypeAdapter(TemplateNews)
