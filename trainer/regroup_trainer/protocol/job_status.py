"""The status of a job that its coordinator serves to the operator and to the local mode."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError
from pydantic_core import from_json

from regroup_trainer.protocol import version_one
from regroup_trainer.protocol.generation import GenerationNumber, RestoredFrom
from regroup_trainer.protocol.ledger import Cause, FailedStarts, Ledger
from regroup_trainer.protocol.message import (
    PROTOCOL_VERSION,
    TEXT_LIMIT,
    Message,
    Name,
    Text,
    first_problem,
    listed,
    quote,
)
from regroup_trainer.protocol.rank_messages import (
    CheckpointSaved,
    Evaluated,
    Progress,
    VolumeProblem,
)
from regroup_trainer.protocol.waiting_reasons import WaitingReason


class MemberStatus(Message):
    """A connected, or just lost, member."""

    member: Name
    index: int
    pod: Name
    node: Name
    rank: int | None
    """Its first rank in the current generation."""
    step: int
    lost: Text = ""
    """Why it was declared lost; empty while it is here.

    A lost member is listed until a replacement with its index says hello.
    """


class Straggler(Message):
    """A rank that all others wait for in every step."""

    rank: int
    member: Name
    pod: Name
    node: Name
    percent: int
    """How much longer than the median rank it computed when it was found."""


class Stall(Message):
    """A generation makes no step for much longer than one takes."""

    since: float
    """Wall clock of the last work that it did."""
    step: int
    """The last step that it committed."""
    limit_seconds: float
    """All its ranks begin anew after so many seconds without work."""


class Recovery(Message):
    """The way from the end of a generation, planned or not, to the first step of the next."""

    sequence: int
    """The n of the following generation: unique and rising within a term."""
    time: float
    """Wall clock of the detection."""
    cause: Cause
    restored_from: RestoredFrom
    generation: GenerationNumber
    """The generation that followed."""
    member: Name = ""
    pod: Name = ""
    node: Name = ""
    exit_code: int | None = None
    message: Text = ""
    lost_steps: int | None = None
    """None until the state is restored."""
    unflushed_steps: int = 0
    """Those of the lost steps that were reported, but are not in the history on the volume."""
    resumed_from_step: int | None = None
    detect_seconds: float = 0.0
    """From the last sign of life to the detection; 0 when the loss was reported."""
    down_seconds: float | None = None
    """From the last committed step before it to the first after it; None until then."""
    world_size_before: int
    world_size_after: int


class JobEvent(Message):
    """An event for the user. The operator makes a Kubernetes Event of it."""

    sequence: int
    time: float
    type: Literal["Normal", "Warning"]
    reason: Name
    message: Text


class Waiting(Message):
    """Why a job does not train at the moment. The coordinator and the operator both use it."""

    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=64)]
    """The name of a WaitingReason; from a newer coordinator perhaps one that is unknown here."""
    message: Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)]
    """One sentence: what is missing, where, and what to do about it."""

    @classmethod
    def of(cls, reason: WaitingReason, message: str) -> Self:
        """The value, with `message` cut to what the field may hold."""
        return cls(reason=reason.name, message=message[:TEXT_LIMIT])


FAILS_AT_START = "FailsAtStart"
"""Reason of a job whose program would fail again before its first step."""


class Outcome(Message):
    """How the job ended."""

    result: Literal["completed", "failed", "suspended"]
    message: Text
    exit_code: int = 0
    reason: Name = ""
    """In CamelCase, where it is known more precisely than that training failed."""


class RequestAnswer(Message):
    """What became of `Desired.checkpoint_request`, or of `restart_request`."""

    request: Name
    """Its value."""
    outcome: Literal["Pending", "Done", "Failed", "Refused"] = "Pending"
    message: Text = ""
    """One sentence; empty while it is pending."""


SERIES_PATH = "/series"
"""Where a coordinator serves its Series to whoever reaches its port, as /metrics."""
SERIES_FILE = "series.json"
"""Where its successor finds it, in the job's folder on the volume."""
SERIES_POINTS = 2000
"""Of a series, at most."""


class SeriesPoint(Message):
    """How the training was at one time."""

    time: float
    """Wall clock of the coordinator, seconds since the epoch."""
    step: int
    """Steps committed. It falls where steps were lost."""
    world_size: int
    loss: float | None = None
    """Mean loss per token in nats, or what a script calls its loss; None: none, or not finite."""
    learning_rate: float = 0.0
    """0 of a script."""
    tokens_per_second: float = 0.0
    """Samples where the loss is one per sample; 0 of a script."""
    steps_per_second: float = 0.0
    """Of a script that reports its steps."""


class Series(Message):
    """The course of a job over all its coordinators, as far as the volume has kept it."""

    every: float = 1.0
    """Seconds between two points, at least. It doubles when there would be too many."""
    points: Annotated[tuple[SeriesPoint, ...], Field(max_length=SERIES_POINTS, fail_fast=True)] = ()
    """The oldest first."""


STEPS_PATH = "/steps"
"""Where a coordinator serves WorkerSteps to whoever reaches its port."""


class WorkerStep(Message):
    """How far one worker is."""

    index: int
    step: int
    """The last one that it reported."""


class WorkerSteps(Message):
    """How far the workers are that have a rank, at this moment."""

    workers: Annotated[tuple[WorkerStep, ...], Field(fail_fast=True)] = ()
    """By index."""


WATCH_LINE_SECONDS = (1.0, 5.0)
"""Least and longest time between two lines of a watch while nothing changes."""
WATCH_LINE_BYTES = 64 * 1024
"""Of a line of a watch, with its end."""
ASK_LINE = b'{"ask":"/v1/status"}'
"""Stands in a watch for a status that is longer than a line may be."""

CoordinatorPhase = Literal[
    "waiting",
    "starting",
    "running",
    "recovering",
    "resizing",
    "stopping",
    "suspended",
    "completed",
    "failed",
]


class CoordinatorStatus(Message):
    """Answer of GET /v1/status?after=SEQUENCE&wait=SECONDS: returns at once when `sequence` is
    above `after`.

    GET /v1/watch?every=SECONDS answers with lines until the process ends, so often at least. A line
    is a status, or ASK_LINE where that is longer than WATCH_LINE_BYTES: at the begin, after a
    change of its essence or of `agents_in_contact`, and each half minute for the progress. An empty
    line says that neither has changed.
    """

    protocol: int = PROTOCOL_VERSION
    term: int
    sequence: int
    """Raised by every change."""
    revision: int
    """The revision of the Desired in force."""
    phase: CoordinatorPhase
    message: Text
    waiting: Waiting | None = None
    """Why no generation trains; None while one does, and from a coordinator that does not report
    it.
    """
    generation: GenerationNumber | None = None
    world_size: int = 0
    spares: int = 0
    """Warm workers without a rank, beside a full generation."""
    members: Annotated[tuple[MemberStatus, ...], Field(fail_fast=True)] = ()
    agents_in_contact: Annotated[tuple[Name, ...], Field(fail_fast=True)] | None = None
    """Agents that are no members and showed life in the last seconds: they import torch, or are
    about to connect. None from a coordinator that does not report it.
    """
    progress: Progress | None = None
    total_steps: int = 0
    evaluation: Evaluated | None = None
    checkpoint: CheckpointSaved | None = None
    checkpoint_answer: RequestAnswer | None = None
    """Of the newest request for one; None where nobody has asked this coordinator."""
    restart_answer: RequestAnswer | None = None
    """The same of the newest request for a restart."""
    ledger: Ledger = Ledger()
    recoveries: Annotated[tuple[Recovery, ...], Field(fail_fast=True)] = ()
    """The newest ten."""
    stragglers: Annotated[tuple[Straggler, ...], Field(fail_fast=True)] = ()
    """The stragglers of the current generation, the slowest first."""
    stall: Stall | None = None
    """None while the current generation works, and from a coordinator that does not report it."""
    events: Annotated[tuple[JobEvent, ...], Field(fail_fast=True)] = ()
    """The newest fifty."""
    failed_starts: FailedStarts | None = None
    """None where the program can start, and from a coordinator that does not report it."""
    volume: VolumeProblem | None = None
    """What is wrong with the volume, for ranks or for the coordinator; None while nothing is."""
    outcome: Outcome | None = None
    """How the job ended; None while it has not."""

    def essence(self) -> tuple[object, ...]:
        """What makes a status news: all but the numbers that every step changes."""
        return (
            *(getattr(self, name) for name in _ESSENTIAL),
            [(member.member, member.rank, member.lost) for member in self.members],
            self.progress is not None,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an answer of any version of the protocol that is still spoken. Raises ValueError,
        which names the version.
        """
        return cls.read(from_json(text))

    @classmethod
    def read(cls, document: Any) -> Self:
        """The same of an answer that is decoded already."""
        require_known_protocol(document)
        version = document.get("protocol") if isinstance(document, dict) else None
        if version == version_one.VERSION:
            document = version_one.upgrade_status(document)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ValueError(f"protocol {quote(version)}: {first_problem(error)}") from error


class UnknownProtocolError(ValueError):
    """An answer of a version of the protocol that this release does not speak."""


def require_known_protocol(document: Any) -> None:
    """Refuse an answer of a version of the protocol that this release does not speak, whatever else
    it holds: its fields may mean something else. Raises UnknownProtocolError, which names the
    versions.
    """
    version = document.get("protocol", PROTOCOL_VERSION) if isinstance(document, dict) else None
    if problem := unknown_protocol(version):
        raise UnknownProtocolError(problem)


def unknown_protocol(version: object) -> str:
    """Why a job of this version of the protocol is not understood, and what to do; empty where it
    is, and for None.
    """
    if version is None or version in _KNOWN_PROTOCOLS:
        return ""
    known = listed([str(each) for each in _KNOWN_PROTOCOLS])
    return (
        f"protocol {quote(version)}: this release speaks protocols {known}: suspend and resume the "
        "job"
    )


_KNOWN_PROTOCOLS = (*sorted(version_one.DESIRED_VERSIONS), PROTOCOL_VERSION)
_NOT_ESSENTIAL = {"sequence", "agents_in_contact", "progress", "ledger", "message", "members"}
_ESSENTIAL = tuple(name for name in CoordinatorStatus.model_fields if name not in _NOT_ESSENTIAL)
