"""What ranks report to their agent, which passes it on to the coordinator."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from regroup_trainer.protocol.generation import GenerationNumber, RestoredFrom, SnapshotNumber
from regroup_trainer.protocol.message import Count, Message, Name, Text, WallClock
from regroup_trainer.system.backoff import turn_seconds

HIGHEST_STEP: Final = 2**53 - 1
"""JSON and JavaScript hold all whole numbers up to it."""
AGENT_PROGRESS_SECONDS: Final = 1.0
"""Least time between two messages of an agent that say how far its ranks are."""
LONGEST_PROGRESS_SECONDS: Final = 10.0
"""The same of agents in the largest generations."""
PROGRESS_A_SECOND: Final = 128
"""So many of these messages a coordinator reads with little of a core."""
BUSY_LIMIT: Final = 64
"""Characters that say what a rank is busy with."""
BUSY_SECONDS: Final = 1.0
"""Between reports of what a rank is busy with: less than the shortest deadline of a step."""
CollectiveOp = Literal["gradients", "commit"]
"""What a rank waits for others in."""
MemoryKind = Literal["host", "host_available", "gpu", "gpu_available"]
"""Memory that a rank uses, and what is left to it. Of a GPU: at its peak."""
Step = Annotated[int, Field(ge=0, le=HIGHEST_STEP)]


def progress_seconds(agents: int) -> float:
    """Least time between two messages with progress of an agent without rank 0, in a generation of
    so many agents. Rank 0 says how far the job is; what the others say is for paces and tables.
    """
    least, longest = AGENT_PROGRESS_SECONDS, LONGEST_PROGRESS_SECONDS
    return turn_seconds(agents, PROGRESS_A_SECOND, least, longest)


class Report(Message):
    """Base of the reports of a rank. A report of another generation than the current is dropped."""

    generation: GenerationNumber
    rank: int


class VolumeProblem(Message):
    """The volume refuses what a rank or the coordinator needs, or does not answer."""

    path: Text
    error: Text
    since: WallClock
    """Wall clock of the first failure in a row, seconds since the epoch."""
    at_risk: Text
    """What is kept in memory meanwhile, and what is lost if that memory is lost."""

    @property
    def what(self) -> str:
        """Where it is and what is wrong. Errors about a file name it."""
        return self.error if self.error.startswith(self.path) else f"{self.path}: {self.error}"

    @property
    def sentence(self) -> str:
        """The same, and what is at risk."""
        return f"{self.what}. {self.at_risk}"


class SkippedCheckpoint(Message):
    """A checkpoint that was passed over on the way back to a whole one."""

    path: Text
    why: Text


class HistoryEnd(Message):
    """Where the history of the generations that a generation continues ends."""

    step: int
    """The last step that counts: where one of them resumed below the last line, that step."""
    written_step: int
    """The step of the last line."""
    world_size: int
    """Ranks that made it; 0: the history has no line."""
    time: float
    """When the history was last written: wall clock of the volume."""


class Restored(Report):
    """Every rank sends it once its state is in place, before its first step.

    Rank 0 adds where the state comes from.
    """

    kind: Literal["restored"] = "restored"
    step: int
    """The step that the state has completed; 0 at the very start."""
    restored_from: RestoredFrom | None = None
    """The source that served, which may differ from that of the generation's record."""
    path: Text | None = None
    """The checkpoint, None when started from scratch."""
    skipped: Annotated[tuple[SkippedCheckpoint, ...], Field(fail_fast=True)] = ()
    seconds: float = 0.0
    """Since the rank began to enter the generation."""
    join_seconds: float = 0.0
    """Of these, until it had joined the process group."""
    parameters: int = 0
    attention: str = ""
    """The kernel that computes the attention, as `model.attention` names it; else empty."""
    total_steps: int | None = None
    """Steps in all, where a user's script sets them; None where the configuration does."""
    fallback_reason: Text = ""
    """Why the memory snapshot could not be used; empty when it was, or none was meant to be."""
    history_end: HistoryEnd | None = None
    """What the volume shows that was committed before; None where peers had the state, where the
    resume policy starts another line, and for a first generation.
    """


class Progress(Report):
    """Every rank sends it after committed steps. Only rank 0 fills loss and rates."""

    kind: Literal["progress"] = "progress"
    step: int
    """Steps committed."""
    time: WallClock
    """Wall clock of the commit, seconds since the epoch."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Time of this generation by ledger phase, cumulative since `Restored`."""
    epoch: float = 0.0
    loss: float | None = None
    """Mean loss per token in nats, or what a script calls its loss; None when not finite."""
    has_loss: bool = True
    """False: the script has reported no loss."""
    gradient_norm: float | None = None
    learning_rate: float = 0.0
    tokens: int = 0
    """Tokens trained on in steps 1..step."""
    compute_seconds: float = 0.0
    """Mean own time of the steps since the last report, without waits for others; 0: not measured.
    """
    skipped: int = 0
    """Steps of this generation without an update, since loss or gradients were not finite."""
    tokens_per_second: float = 0.0
    counts_samples: bool = False
    """Whether each of these tokens is a sample: an image, or a loss per sample in a Session."""
    mfu: float = 0.0
    """Share of the peak of all GPUs that the model's operations reach; 0: not known. For the agent
    alone.
    """
    total_steps: Step = 0
    """Steps in all, as a script reports them; 0: it does not."""
    steps_per_second: float = 0.0
    """Of a script."""
    collective_seconds: dict[CollectiveOp, float] = Field(default_factory=dict)
    """Time of this generation in collectives, cumulative as `seconds`. For the agent alone."""
    memory_bytes: dict[MemoryKind, int] = Field(default_factory=dict)
    """As far as the rank alone knows it. For the agent alone."""
    report_seconds: float = 0.0
    """Longest time between two reports of a script, or from its start to the first."""
    volume: VolumeProblem | None = None
    """What keeps rank 0 from writing the history, if anything does."""

    def for_coordinator(self) -> Progress:
        """What an agent passes on."""
        return self.model_copy(update={"collective_seconds": {}, "memory_bytes": {}, "mfu": 0.0})


class ScriptStep(Report):
    """A program without a Session has made a step. Its agent makes Restored and Progress of it."""

    kind: Literal["script_step"] = "script_step"
    step: Step
    total: Step = 0
    """Steps in all; 0: unknown."""
    loss: float | None = None
    """None when not finite."""
    has_loss: bool
    """Whether there is a loss at all."""
    time: WallClock
    """Wall clock, seconds since the epoch."""


class Evaluated(Report):
    """Loss on the held-out part."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    loss: float
    accuracy: float | None = None
    """Share of images that were classified right; None for text."""


class Busy(Report):
    """No step comes for now. A rank repeats this each BUSY_SECONDS, so as not to seem to hang."""

    kind: Literal["busy"] = "busy"
    doing: Annotated[str, Field(max_length=BUSY_LIMIT)]
    """`save`, `evaluation`, or what a script says."""
    step: int
    lasting: bool = False
    """Whether it holds until the rank's next step, without being repeated."""
    volume: VolumeProblem | None = None
    """What keeps the rank from entering its generation, if that is the volume."""


class SnapshotFile(NamedTuple):
    """One file of a shard of a memory snapshot."""

    size: Count
    checksum: str
    """xxh3_64, hexadecimal."""


class SnapshotTaken(Report):
    """A rank has copied its shard of a memory snapshot. Its agent does not pass it on."""

    kind: Literal["snapshot_taken"] = "snapshot_taken"
    number: SnapshotNumber
    shard: int
    slot: int
    files: dict[Name, SnapshotFile]


class SnapshotsOff(Report):
    """This generation takes no memory snapshots."""

    kind: Literal["snapshots_off"] = "snapshots_off"
    why: Text


class CheckpointSaved(Report):
    """A checkpoint was published."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    path: Text
    size_bytes: int
    seconds: float
    """From the decision to the rename."""
    blocking_seconds: float
    """Time for which the save blocked the training."""
    time: WallClock


CheckpointStage = Literal["write", "publish", "prune"]


class CheckpointFailed(Report):
    """A save failed. Training goes on, and another save follows soon."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    stage: CheckpointStage
    error: Text


class LastLine(Report):
    """A program has run to its last line; the end of its process follows. Its agent does not pass
    it on.
    """

    kind: Literal["last_line"] = "last_line"


class Retained(Message):
    """The state that a rank process keeps after its generation has ended."""

    step: int
    """Steps applied completely."""
    prepared: bool = False
    """Whether it can also apply the next one: it holds that step's reduced gradients."""
    shard: int = 0
    """Which part of the whole state it is."""
    shards: int = 1
    """The number of parts of the whole state."""


class Parked(Report):
    """The rank has left a generation that failed. Its process waits for the next one."""

    kind: Literal["parked"] = "parked"
    retained: Retained


GenerationOutcome = Literal["completed", "leave", "stop"]
"""How a generation ends by agreement: all steps are done; another generation follows; none does."""


class Finished(Report):
    """The rank ends by agreement after `step`. Its process exits unless it keeps its state."""

    kind: Literal["finished"] = "finished"
    step: int
    reason: GenerationOutcome
    retained: Retained | None = None
    """The state that its process keeps while it waits for the next generation."""


RankReport = Annotated[
    Restored
    | Progress
    | ScriptStep
    | Evaluated
    | Busy
    | SnapshotTaken
    | SnapshotsOff
    | CheckpointSaved
    | CheckpointFailed
    | LastLine
    | Parked
    | Finished,
    Field(discriminator="kind"),
]
rank_report: TypeAdapter[RankReport] = TypeAdapter(RankReport)
