"""What agents send to the coordinator: their own messages, and the reports of their ranks. And what
they show to somebody who debugs a job.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, TypeAdapter, field_serializer, model_validator

from regroup_trainer.protocol.exit_codes import SIGNALS, describe_signal
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordPiece,
    RecordWanted,
    SnapshotNumber,
)
from regroup_trainer.protocol.message import Count, Message, Name, Text
from regroup_trainer.protocol.rank_messages import (
    Busy,
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
    SnapshotsOff,
)

MOST_REPORTS: Final = 512
"""Reports in one message."""
FRAME_CHARACTERS: Final = 512
"""Of each part of a frame. Faulthandler writes at most about 500 of a name."""
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


class RankExit(Report):
    """A rank process ended, other than by the agent's order for a new generation."""

    kind: Literal["rank_exit"] = "rank_exit"
    exit_code: int
    """128 + signal when a signal ended it."""
    signal: int | None = None
    cause: Literal["error", "signal", "oom", "peer"]
    """`peer`: a collective failed because a peer went away; never the first cause."""
    message: Text = ""
    """The end of the traceback."""

    @property
    def how(self) -> str:
        """How it ended, to be read after its name."""
        if self.cause == "oom":
            return "ran out of memory and was killed (raise the memory limit, or use less)"
        if self.signal is None:
            return f"ended with exit code {self.exit_code}"
        if self.cause == "peer":  # its agent sent it, and the message says why
            return f"was ended by {SIGNALS.get(self.signal, f'signal {self.signal}')}"
        return f"was ended by {describe_signal(self.signal)}"


class StackFrame(NamedTuple):
    """What a thread executes."""

    file: str
    line: str
    function: str


class Stack(Report):
    """The stacks of a rank, sent by its agent in answer to Diagnose."""

    kind: Literal["stack"] = "stack"
    text: Annotated[str, Field(max_length=16384)] = ""
    """As faulthandler writes it: all threads, innermost call first. Empty: the rank did not answer.
    Agents send the innermost call of the main thread alone; those of release 0.2 send all.
    """

    def shortened(self) -> Self:
        """What a coordinator needs of it. All ranks of a job are asked at once, so that whole
        texts would fill its memory while they wait to be read.
        """
        frame = self.innermost()
        text = f'File "{frame.file}", line {frame.line} in {frame.function}' if frame else ""
        return self.model_copy(update={"text": text})

    def innermost(self) -> StackFrame | None:
        """The innermost call of the main thread; None: the text shows none.

        Faulthandler marks that thread as the current one, or writes it last.
        """
        threads = self.text.strip().split("\n\n")
        current = (thread for thread in threads if thread.startswith("Current thread"))
        match = _FRAME.search(next(current, threads[-1]))
        return StackFrame(*(part[:FRAME_CHARACTERS] for part in match.groups())) if match else None


class RankStack(Message):
    """What one rank does, as somebody sees it who debugs the job."""

    rank: int
    text: Annotated[str, Field(max_length=16384)] = ""
    """As in `Stack`."""
    missing: Text = ""
    """Why there is no text, to be read after the name of the rank."""


class WorkerStacks(Message):
    """What the running ranks of a worker do; none: they are starting, parked, or it is a spare."""

    ranks: Annotated[tuple[RankStack, ...], Field(fail_fast=True)]


class HeldSnapshot(Message):
    """The shards that an agent holds of one memory snapshot, whole and with verified checksums."""

    number: SnapshotNumber
    shards: Annotated[tuple[Count, ...], Field(fail_fast=True)]

    @model_validator(mode="after")
    def _has_these_shards(self) -> Self:
        highest = max(self.shards, default=0)
        if highest >= self.number.shards:
            raise ValueError(
                f"shards: {highest} is not below {self.number.shards}, the parts in all"
            )
        return self


class HeldSnapshots(Message):
    """All snapshots that an agent holds now; sent when they change."""

    kind: Literal["held_snapshots"] = "held_snapshots"
    snapshots: Annotated[tuple[HeldSnapshot, ...], Field(fail_fast=True)]


class HelloContent(Message):
    """What an agent says of itself on every connection."""

    protocol: int
    member: Name
    index: int
    pod: Name
    node: Name
    ranks: int
    """Rank processes that it runs."""
    store: Name
    """host:port of its c10d store."""
    highest: GenerationNumber | None = None
    """The highest generation it has ever seen. It refuses all lower ones."""
    restored: Restored | None = None
    """The report of its first rank in that generation."""
    progress: Progress | None = None
    checkpoint: CheckpointSaved | None = None
    busy: Annotated[tuple[Busy, ...], Field(fail_fast=True)] = ()
    """What its ranks are busy with until their next step."""
    ended: Annotated[tuple[RankExit | Finished | Parked, ...], Field(fail_fast=True)] = ()
    """How its ranks ended in the current generation."""
    endpoint: Name = ""
    """host:port of its HTTP endpoint."""
    snapshots: Annotated[tuple[HeldSnapshot, ...], Field(fail_fast=True)] = ()

    def _content(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in HelloContent.model_fields}


class ShortHello(HelloContent):
    """A hello as it is sent, the first message on every connection."""

    kind: Literal["hello"] = "hello"
    generation: GenerationNumber | None = None
    """Its current generation. A coordinator that lacks the record asks for it."""

    def with_record(self, record: GenerationRecord | None) -> Hello:
        """The hello, with the record of its generation."""
        return Hello(**self._content(), record=record)


class Hello(HelloContent):
    """An agent's hello, as agents make it and coordinators know it."""

    record: GenerationRecord | None = None
    """Its current generation. Its ranks train on while no coordinator is connected."""

    def shortened(self) -> ShortHello:
        """As it is sent."""
        number = self.record.number if self.record else None
        return ShortHello(**self._content(), generation=number)


class Leaving(Message):
    """The agent got SIGTERM. It asks for an agreed last step, and a generation without it."""

    kind: Literal["leaving"] = "leaving"
    reason: Text


RankEvent = Annotated[
    RankExit
    | Stack
    | Restored
    | Progress
    | Evaluated
    | Busy
    | SnapshotsOff
    | CheckpointSaved
    | CheckpointFailed
    | Parked
    | Finished,
    Field(discriminator="kind"),
]
"""What an agent reports of one of its ranks."""


class Reports(Message):
    """What the ranks of an agent report, those of each rank in their order."""

    kind: Literal["reports"] = "reports"
    reports: Annotated[tuple[RankEvent, ...], Field(max_length=MOST_REPORTS, fail_fast=True)]

    @field_serializer("reports")
    def _without_defaults(self, reports: tuple[RankEvent, ...]) -> list[dict[str, Any]]:
        """Most fields of most reports have their defaults, and a rank reports each second."""
        return [
            {"kind": report.kind, **report.model_dump(mode="json", exclude_defaults=True)}
            for report in reports
        ]


AgentMessage = Annotated[
    ShortHello | Leaving | HeldSnapshots | Reports | RecordWanted | RecordPiece,
    Field(discriminator="kind"),
]
agent_message: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)
