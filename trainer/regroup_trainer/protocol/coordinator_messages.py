"""What the coordinator sends to agents, and agents pass on to their ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from regroup_trainer.protocol.generation import (
    Assignment,
    Decision,
    GenerationNumber,
    GenerationRecord,
    RecordDifference,
    RecordPiece,
    RecordWanted,
    SnapshotNumber,
)
from regroup_trainer.protocol.message import Message, Text


class Welcome(Message):
    """The hello was accepted."""

    kind: Literal["welcome"] = "welcome"
    term: int


class Refused(Message):
    """The hello was not accepted; `final` says that trying again is of no use."""

    kind: Literal["refused"] = "refused"
    reason: Text
    final: bool


class Begin(Message):
    """Begin this generation; ranks of older ones are killed.

    Parked ranks enter it if its state is restored from peers. All others are forked. A member
    without a place waits. It is sent as a BeginDifference.
    """

    record: GenerationRecord


class BeginDifference(Message):
    """A Begin as it is sent: the same to all agents, however many there are."""

    kind: Literal["begin"] = "begin"
    number: GenerationNumber
    checksum: Annotated[str, Field(max_length=64)]
    """Of the whole record (`record_transfer.checksum_of`)."""
    parent: GenerationNumber | None = None
    """The generation whose record an agent needs for the difference; None: there is none. An agent
    that lacks it asks for the whole record, and holds back what arrives meanwhile.
    """
    difference: RecordDifference | None = None


class Decide(Message):
    """A decision for rank 0, which puts it into the next commit vector."""

    kind: Literal["decide"] = "decide"
    generation: GenerationNumber
    decision: Decision


class LeaveGeneration(Message):
    """The generation is over. Its ranks leave their collectives, and may park with their state."""

    kind: Literal["leave_generation"] = "leave_generation"
    generation: GenerationNumber
    seconds: float = 1.0
    """A rank that needs longer is killed. For a program without a Session they begin once it is
    asked to end.
    """
    save_seconds: float = 0.0
    """How long a program without a Session may go on before that, while it writes. It may be
    saving, and could not know that its save was cut off.
    """
    stuck: int | None = None
    """A rank that hangs. It is killed at once."""


class Enter(Message):
    """The place of a parked rank in the next generation."""

    kind: Literal["enter"] = "enter"
    assignment: Assignment


class Diagnose(Message):
    """No step comes: send a Stack for each rank."""

    kind: Literal["diagnose"] = "diagnose"
    generation: GenerationNumber


class SnapshotComplete(Message):
    """Enough members hold every shard of this snapshot, so that older ones may go."""

    kind: Literal["snapshot_complete"] = "snapshot_complete"
    number: SnapshotNumber


class Exit(Message):
    """Exit with this code: the job has ended, or goes on without this agent."""

    kind: Literal["exit"] = "exit"
    code: int
    reason: Text


Order = Welcome | Refused | Decide | LeaveGeneration | Diagnose | SnapshotComplete | Exit
CoordinatorMessage = Order | Begin
"""What a coordinator sends to an agent."""
SentMessage = Annotated[
    Order | BeginDifference | RecordWanted | RecordPiece, Field(discriminator="kind")
]
"""What it sends."""
sent_message: TypeAdapter[SentMessage] = TypeAdapter(SentMessage)
RankMessage = Annotated[Decide | LeaveGeneration | Enter, Field(discriminator="kind")]
rank_message: TypeAdapter[RankMessage] = TypeAdapter(RankMessage)
