"""What operator, coordinator, agents and ranks say to each other: message models, environment, paths on the volume.

Torch-free and Kubernetes-free. Every message is one JSON object; `kind` names it. A change that an older peer would
misread raises PROTOCOL_VERSION: peers of another version are refused in the hello, never half understood.

    operator    --HTTP-->       coordinator    Desired, Lost; its answer is in `job_status`
    agent       --WebSocket-->  coordinator    Hello, RankReport, RankExit, Stack, HeldSnapshots, Leaving
                                               / Welcome, Refused, Begin, Decide, LeaveWorld, Diagnose,
                                               SnapshotComplete, Exit
    agent       --HTTP-->       other agents   memory snapshots
    rank        --socket-->     its agent      RankReport / Decide, LeaveWorld, Enter
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from regroup_trainer.config import CheckpointPolicy, ResumePolicy, TrainConfig

PROTOCOL_VERSION = 1
COORDINATOR_PORT = 8471
AGENT_METRICS_PORT = 8472
VOLUME_MOUNT = "/regroup/volume"
TOKEN_FILE = "/regroup/token/token"
DIRECTORY_VARIABLE = "REGROUP_DIRECTORY"
"""Names the job's own folder on the volume to a user's script; nobody has made it yet."""
PEER_LOST_EXIT_CODE = 75
"""A rank ends with it when a collective failed because a peer went away (EX_TEMPFAIL of sysexits.h)."""

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=253)]


class Message(BaseModel):
    """Base of everything on the wire: immutable; unknown fields are an error, since versions are agreed beforehand."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GenerationNumber(NamedTuple):
    """The number of an agreed world, compared lexicographically; on the wire a list of two integers."""

    term: int
    """Raised by the operator before it makes a coordinator."""
    n: int
    """Counted by that coordinator."""

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError when `text` is not two integers joined by a dot."""
        term, n = text.split(".")
        return cls(int(term), int(n))


class SnapshotNumber(NamedTuple):
    """One memory snapshot of the whole state; the newest compares highest."""

    step: int
    generation: GenerationNumber
    """Whose ranks took it: another one's of the same step is another snapshot."""
    shards: int
    """Of how many parts it consists."""

    def __str__(self) -> str:
        return f"{self.step}-{self.generation.term}-{self.generation.n}-{self.shards}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError when `text` is not four integers joined by dashes."""
        step, term, n, shards = map(int, text.split("-"))
        return cls(step, GenerationNumber(term, n), shards)


Rung = Literal["start", "L0", "L1", "L2"]
"""Where a generation's state comes from: nowhere yet, live peers, memory snapshots, a verified checkpoint."""
Cause = Literal["application", "infrastructure", "hang", "preemption", "resize"]
"""Which budget a restart counts against."""


class Decision(IntEnum):
    """What the ranks do together at the start of the next step; carried in the commit vector as a small number."""

    CONTINUE = 0
    SNAPSHOT = 1
    """Copy the state into memory that outlives the ranks, and go on."""
    SAVE = 2
    """Save a checkpoint and go on."""
    LEAVE = 3
    """End this generation; another world follows. The state stays in memory where it can, else it is saved."""
    RELOAD = 4
    """Save, end this generation; another world follows, from the checkpoint."""
    STOP = 5
    """Save (if the policy says so), end this generation; none follows."""


# --- what the operator wants -----------------------------------------------------------------------------------------


class Ledger(Message):
    """Cumulative account of a job's time and losses. It never falls: a new coordinator is seeded with the last one."""

    seconds: dict[str, float] = {}
    """Seconds by phase: pending, startup, rendezvous, step, data_wait, checkpoint_save, checkpoint_restore, evaluation,
    idle."""
    lost_work_seconds: float = 0.0
    """Time of steps that were done and had to be done again."""
    lost_steps: int = 0
    restarts: dict[Cause, int] = {}

    @property
    def goodput_ratio(self) -> float:
        """(step seconds - lost work seconds) / all seconds; 0 before any time has passed."""
        total = sum(self.seconds.values())
        return max(0.0, self.seconds.get("step", 0.0) - self.lost_work_seconds) / total if total else 0.0


class Desired(Message):
    """What the job should be, as the operator (or the local mode) last saw the spec. The highest revision wins."""

    revision: int
    """metadata.generation of the TrainingJob."""
    namespace: Name
    job: Name
    replicas: int
    """Workers wanted now."""
    min_replicas: int
    max_replicas: int
    replica_group_size: int = 1
    spares: int = 0
    """Workers beyond `replicas` that wait, warm, for a lost one's place."""
    suspend: bool = False
    heartbeat_milliseconds: int = 500
    timeout_milliseconds: int = 2000
    start_grace_seconds: float = 3.0
    """How long to wait for `replicas` once `min_replicas` are there."""
    max_restarts: int = 10
    """Budget for application failures; -1: no limit."""
    backoff_seconds: float = 1.0
    """Pause before the second consecutive application restart without progress; doubles up to the maximum."""
    max_backoff_seconds: float = 300.0
    progress_timeout_seconds: int = 0
    """Time without a step after which a world hangs; 0: follows from the time of its steps."""
    max_hang_restarts: int = 3
    """Budget for hangs; -1: no limit."""
    straggler_percent: int = 30
    """A rank that computes so much longer than the median is a straggler."""
    train: TrainConfig
    script: tuple[Text, ...] = ()
    """A program of the user's own, and its arguments, that the ranks run instead of the built-in trainer."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    resume: ResumePolicy = ResumePolicy()
    directory: Text
    """The job's own folder on the volume, as coordinator and ranks see it."""
    seed: Ledger = Ledger()
    """The account so far, for a coordinator that takes over."""

    @property
    def workers(self) -> int:
        """Workers wanted, spares included: indices below it."""
        return self.replicas + self.spares


class Lost(Message):
    """The operator's word that members are gone (pod deleted, node NotReady, eviction): acted on at once."""

    members: tuple[Name, ...]
    reason: Text


# --- generations -----------------------------------------------------------------------------------------------------


class MemberRecord(Message):
    """A member's place in a generation."""

    member: Name
    """The pod's UID (local mode: a UID of the process)."""
    index: int
    """The worker's index in the job, kept by its replacement."""
    pod: Name
    node: Name
    first_rank: int
    ranks: int
    """Rank processes of this member: first_rank, first_rank + 1, ..."""
    address: Name = ""
    """Where its ranks are reached by the others."""
    endpoint: Name = ""
    """host:port of its agent, where others keep and fetch snapshots."""

    @property
    def own_ranks(self) -> range:
        """The ranks that it runs."""
        return range(self.first_rank, self.first_rank + self.ranks)


class SnapshotSource(Message):
    """A memory snapshot and where it is."""

    number: SnapshotNumber
    places: tuple[Name, ...]
    """host:port of an agent that holds it, by shard."""


class GenerationRecord(Message):
    """One agreed world."""

    number: GenerationNumber
    reason: Text
    rung: Rung
    members: tuple[MemberRecord, ...]
    """In rank order."""
    store: Name
    """host:port of the c10d store in the pod of rank 0, used by this generation only."""
    desired: Desired
    snapshot: SnapshotSource | None = None
    """The newest whole memory snapshot: kept until a newer one is whole; on rung L1 the state comes from it."""

    @property
    def world_size(self) -> int:
        """Ranks over all members."""
        return sum(member.ranks for member in self.members)

    def place_of(self, member: str) -> MemberRecord | None:
        """The member's place, None if it is not part of this generation."""
        return next((place for place in self.members if place.member == member), None)

    def place_of_rank(self, rank: int) -> MemberRecord | None:
        """The place of the member that runs this rank, None if there is no such rank."""
        return next((place for place in self.members if rank in place.own_ranks), None)


class Assignment(Message):
    """What a rank process is forked with."""

    record: GenerationRecord
    rank: int
    local_rank: int
    channel: Text
    """Path of its agent's Unix socket."""
    snapshots: Text = ""
    """Folder through which it shares memory with its agent; empty where there is none."""
    free_slot: int = 0
    """Which of its two places there it may write first."""

    @property
    def place(self) -> MemberRecord:
        """Of its member."""
        place = self.record.place_of_rank(self.rank)
        assert place is not None, f"generation {self.record.number} has no rank {self.rank}"
        return place


# --- rank -> agent -> coordinator ------------------------------------------------------------------------------------


class Report(Message):
    """Base of what a rank tells; `generation` fences: a report of another generation than the current is dropped."""

    generation: GenerationNumber
    rank: int


class SkippedCheckpoint(Message):
    """A checkpoint that was passed over on the way back to a whole one."""

    path: Text
    why: Text


class Restored(Report):
    """Sent by every rank when its state is in place, before its first step; rank 0 also says from where."""

    kind: Literal["restored"] = "restored"
    step: int
    """The step that the state has completed; 0 at the very start."""
    rung: Rung | None = None
    """The rung that served, where it may be another than the generation was begun with."""
    path: Text | None = None
    """The checkpoint, None when started from scratch."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    seconds: float = 0.0
    parameters: int = 0
    attention: str = ""
    """The kernel that computes the attention, as `model.attention` names it; empty where there is none."""
    total_steps: int | None = None
    """Steps in all, where the user's own script says so and not the configuration."""
    fallen: Text = ""
    """Why a memory snapshot did not serve that was to; empty when it did."""


class Progress(Report):
    """Sent by every rank after each committed step; loss and rates by rank 0 alone (0 elsewhere)."""

    kind: Literal["progress"] = "progress"
    step: int
    """Steps committed."""
    time: float
    """Wall clock of the commit, seconds since the epoch."""
    seconds: dict[str, float] = {}
    """Time of this generation by ledger phase, cumulative since `Restored`."""
    epoch: float = 0.0
    loss: float | None = None
    """Mean loss per token in nats; None when not finite."""
    gradient_norm: float | None = None
    learning_rate: float = 0.0
    tokens: int = 0
    """Tokens trained on in steps 1..step."""
    compute_seconds: float = 0.0
    """Mean own time of the steps since the last report, without waiting for others; 0 where it is not measured."""
    skipped: int = 0
    """Steps of this generation whose update was left out, since loss or gradients were not finite."""
    tokens_per_second: float = 0.0


class Evaluated(Report):
    """Loss on the held-out part."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    loss: float
    accuracy: float | None = None
    """Share of images that were classified right; None of text."""


class Busy(Report):
    """No step comes, for a reason; told every few seconds, so that it does not look like a hang."""

    kind: Literal["busy"] = "busy"
    doing: Literal["save", "evaluation"]
    step: int


class SnapshotFile(NamedTuple):
    """One file of a part of a memory snapshot."""

    size: int
    checksum: str
    """xxh3_64, hexadecimal."""


class SnapshotTaken(Report):
    """A rank has copied its part of a memory snapshot; for its agent alone."""

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
    """Time that training stood still for it."""
    time: float


class CheckpointFailed(Report):
    """A save failed; training goes on and the next interval tries again."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    stage: Literal["write", "publish", "prune"]
    error: Text


class Kept(Message):
    """A rank's state that lives on in its process though its world has ended."""

    step: int
    """Steps applied, with nothing half done."""
    prepared: bool = False
    """Whether it could also apply the next one: it holds that step's reduced gradients."""
    shard: int = 0
    """Which part of the whole state it is."""
    shards: int = 1
    """Into how many parts the whole state is cut."""


class Standing(Report):
    """The rank has left a world that broke, and waits in its process for the next one."""

    kind: Literal["standing"] = "standing"
    kept: Kept


class Finished(Report):
    """The rank's part ends by agreement after `step`: its process with exit code 0, unless it keeps its state."""

    kind: Literal["finished"] = "finished"
    step: int
    reason: Literal["completed", "leave", "stop"]
    kept: Kept | None = None
    """What lives on in its process, which then waits for the next generation."""


RankReport = Annotated[
    Restored
    | Progress
    | Evaluated
    | Busy
    | SnapshotTaken
    | SnapshotsOff
    | CheckpointSaved
    | CheckpointFailed
    | Standing
    | Finished,
    Field(discriminator="kind"),
]
rank_report: TypeAdapter[RankReport] = TypeAdapter(RankReport)


class RankExit(Report):
    """The agent saw a rank process end other than by its own kill."""

    kind: Literal["rank_exit"] = "rank_exit"
    exit_code: int
    """128 + signal when a signal ended it."""
    signal: int | None = None
    cause: Literal["error", "signal", "oom", "peer"]
    """`peer`: a collective failed since somebody else went away; never the first cause."""
    message: Text = ""
    """The end of the traceback."""


class Stack(Report):
    """Where a rank is right now, asked for when no step comes; sent by its agent."""

    kind: Literal["stack"] = "stack"
    text: Annotated[str, Field(max_length=16384)] = ""
    """As faulthandler writes it, all threads, innermost call first; empty when the rank did not answer."""


class HeldSnapshot(Message):
    """What an agent holds of a memory snapshot, whole and with the right checksums."""

    number: SnapshotNumber
    shards: tuple[int, ...]


class HeldSnapshots(Message):
    """All that an agent holds now; sent when it changes."""

    kind: Literal["held_snapshots"] = "held_snapshots"
    snapshots: tuple[HeldSnapshot, ...]


class Hello(Message):
    """An agent's first word, at the start and after every lost connection."""

    kind: Literal["hello"] = "hello"
    protocol: int
    member: Name
    index: int
    pod: Name
    node: Name
    ranks: int
    """Rank processes that it can run."""
    store: Name
    """host:port of its store process."""
    record: GenerationRecord | None = None
    """Its current generation, whose ranks run on while a coordinator is away."""
    highest: GenerationNumber | None = None
    """The highest generation it has ever seen: lower ones are refused for ever."""
    restored: Restored | None = None
    """Of its first rank in that generation."""
    progress: Progress | None = None
    checkpoint: CheckpointSaved | None = None
    ended: tuple[RankExit | Finished | Standing, ...] = ()
    """How the ranks' part in the current generation has ended."""
    endpoint: Name = ""
    """host:port of its HTTP endpoint."""
    snapshots: tuple[HeldSnapshot, ...] = ()


class Leaving(Message):
    """The agent was asked to go (SIGTERM): an agreed last step, then a world without it."""

    kind: Literal["leaving"] = "leaving"
    reason: Text


AgentMessage = Annotated[
    Hello
    | Leaving
    | RankExit
    | Stack
    | HeldSnapshots
    | Restored
    | Progress
    | Evaluated
    | Busy
    | SnapshotsOff
    | CheckpointSaved
    | CheckpointFailed
    | Standing
    | Finished,
    Field(discriminator="kind"),
]
agent_message: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)


# --- coordinator -> agent (-> rank) ----------------------------------------------------------------------------------


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
    """Begin this generation: in the ranks that stand by if its rung is L0, else in new ones; older ones are killed.

    A member without a place waits.
    """

    kind: Literal["begin"] = "begin"
    record: GenerationRecord


class Decide(Message):
    """For rank 0, which puts it into the next commit vector."""

    kind: Literal["decide"] = "decide"
    generation: GenerationNumber
    decision: Decision


class LeaveWorld(Message):
    """This generation is over: its ranks shall leave their collectives, and stand by if their state is whole."""

    kind: Literal["leave_world"] = "leave_world"
    generation: GenerationNumber
    seconds: float = 1.0
    """Who needs longer is killed, and made anew."""
    stuck: int | None = None
    """A rank that hangs: it is killed at once."""


class Enter(Message):
    """For a rank that stands by: its place in the next generation."""

    kind: Literal["enter"] = "enter"
    assignment: Assignment


class Diagnose(Message):
    """Tell where your ranks are: no step comes. Answered by a Stack for each of them."""

    kind: Literal["diagnose"] = "diagnose"
    generation: GenerationNumber


class SnapshotComplete(Message):
    """All shards of it are held, each by two members where there are two: what is older may go."""

    kind: Literal["snapshot_complete"] = "snapshot_complete"
    number: SnapshotNumber


class Exit(Message):
    """End the agent with this code: the job has ended, or goes on without it."""

    kind: Literal["exit"] = "exit"
    code: int
    reason: Text


CoordinatorMessage = Annotated[
    Welcome | Refused | Begin | Decide | LeaveWorld | Diagnose | SnapshotComplete | Exit, Field(discriminator="kind")
]
coordinator_message: TypeAdapter[CoordinatorMessage] = TypeAdapter(CoordinatorMessage)

RankMessage = Annotated[Decide | LeaveWorld | Enter, Field(discriminator="kind")]
rank_message: TypeAdapter[RankMessage] = TypeAdapter(RankMessage)
