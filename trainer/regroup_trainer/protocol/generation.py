"""A generation: one agreed membership, its number, and the place of each member and rank."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field

from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.message import Count, Message, Name, Text

MEETING_SECONDS: Final = 60.0
"""How long ranks that have all come may take to connect to each other."""


class GenerationNumber(NamedTuple):
    """The number of a generation, compared by term first. On the wire: a list of two numbers."""

    term: Count
    """The operator raises it before it makes a coordinator."""
    n: Count
    """Counted by that coordinator."""

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raises ValueError when `text` is not like "2.7"."""
        term, n = text.split(".")
        return cls(int(term), int(n))


class SnapshotNumber(NamedTuple):
    """One memory snapshot of the whole state; the newest compares highest."""

    step: Count
    generation: GenerationNumber
    """The generation that took it: two generations' snapshots of one step differ."""
    shards: Annotated[Count, Field(ge=1)]
    """The number of parts that it consists of."""

    def __str__(self) -> str:
        return f"{self.step}-{self.generation.term}-{self.generation.n}-{self.shards}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raises ValueError when `text` is not like "40-2-7-3"."""
        step, term, n, shards = map(int, text.split("-"))
        return cls(step, GenerationNumber(term, n), shards)

    def is_older(self, complete: SnapshotNumber) -> bool:
        """Whether agents forget it once they learn that the other one is complete."""
        return self.generation < complete.generation or self.step < complete.step


RestoredFrom = Literal["Nothing", "Peers", "Snapshot", "Checkpoint", "Script"]
"""Where a generation's state comes from: nowhere yet, live peers, memory snapshots, a verified
checkpoint. Script, in reports only: what a program without a Session has saved itself.
"""


class Decision(IntEnum):
    """What all ranks do at the start of the next step. The commit vector carries it as a number."""

    CONTINUE = 0
    SNAPSHOT = 1
    """Copy the state into memory that outlives the ranks, and go on."""
    SAVE = 2
    """Save a checkpoint and go on."""
    LEAVE = 3
    """End this generation; another follows. The state stays in memory if it can, else it is saved.
    """
    RELOAD = 4
    """Save and end this generation; another follows, from the checkpoint."""
    STOP = 5
    """Save, if the policy says so, and end this generation; none follows."""


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
    """The address of its ranks for other ranks."""
    endpoint: Name = ""
    """host:port of its agent, where others store and fetch snapshots."""

    @property
    def where(self) -> str:
        """Pod and node, in words."""
        return f"{self.pod} (node {self.node})" if self.node else self.pod

    @property
    def own_ranks(self) -> range:
        """The ranks of this member."""
        return range(self.first_rank, self.first_rank + self.ranks)


MOST_MEMBERS: Final = 20_000
"""Of a generation: far more workers than a job may have."""
MOST_SHARDS: Final = 1 << 20
"""Of a memory snapshot: more than ranks."""


class SnapshotSource(Message):
    """A memory snapshot, and the agents that hold it."""

    number: SnapshotNumber
    places: Annotated[tuple[Name, ...], Field(max_length=MOST_SHARDS, fail_fast=True)]
    """host:port of an agent for each shard, in order of the shards."""


class GenerationRecord(Message):
    """One agreed membership: who takes part, with which ranks, and where the state comes from."""

    number: GenerationNumber
    reason: Text
    restored_from: RestoredFrom
    members: Annotated[tuple[MemberRecord, ...], Field(max_length=MOST_MEMBERS, fail_fast=True)]
    """In rank order."""
    store: Name
    """host:port of the c10d store in the pod of rank 0, used by this generation only."""
    desired: Desired
    snapshot: SnapshotSource | None = None
    """The newest whole memory snapshot, held until a newer one is complete.

    The state comes from it where `restored_from` is Snapshot.
    """
    failures: int = 0
    """Earlier generations of this job that ended in a failure."""

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


MOST_PIECES: Final = 256
"""Of a record that is sent whole: more than the largest job has with the longest names."""
PIECE_CHARACTERS: Final = 48 * 1024
"""Of the longest piece."""


class MemberRun(NamedTuple):
    """Members of another record, which stand together there too."""

    start: int
    """Where the first of them stands there."""
    stop: int
    """Where the one after the last stands there."""


class HolderRun(NamedTuple):
    """Members that stand together and hold as many shards each, one after another."""

    start: int
    """Where the first of them stands."""
    members: int
    shards: int
    """Of each of them."""


class HolderElsewhere(NamedTuple):
    """An agent without a place in the generation that holds shards."""

    endpoint: Name
    shards: int


class SnapshotDifference(Message):
    """Where a memory snapshot is held, by the members of the generation."""

    number: SnapshotNumber
    holders: Annotated[tuple[HolderRun | HolderElsewhere, ...], Field(fail_fast=True)]
    """In order of the shards."""


class RecordDifference(Message):
    """The record of a generation as a difference to that of its parent."""

    reason: Text
    restored_from: RestoredFrom
    store: Name
    failures: int
    members: Annotated[tuple[MemberRun | MemberRecord, ...], Field(fail_fast=True)]
    """In rank order: members of the parent, and those that joined or have other addresses now. Who
    left is in none of them. Ranks are counted anew through all of them.
    """
    desired: Desired | None = None
    """None: that of the parent."""
    snapshot: SnapshotDifference | None = None


class RecordWanted(Message):
    """Asks for a piece of the record of a generation. A coordinator that has just started asks
    agents, and an agent asks for what it cannot make of a difference.
    """

    kind: Literal["record_wanted"] = "record_wanted"
    number: GenerationNumber
    piece: Annotated[int, Field(ge=0, lt=MOST_PIECES)] = 0


class RecordPiece(Message):
    """Answers RecordWanted. A record is larger than a message may be."""

    kind: Literal["record_piece"] = "record_piece"
    number: GenerationNumber
    piece: Annotated[int, Field(ge=0, lt=MOST_PIECES)]
    pieces: Annotated[int, Field(ge=1, le=MOST_PIECES)]
    """How many there are."""
    text: Annotated[str, Field(max_length=PIECE_CHARACTERS)]
    """Of the record's JSON, compressed by zlib and in Base64."""


class Assignment(Message):
    """The place of a rank process in a generation."""

    record: GenerationRecord
    rank: int
    local_rank: int
    channel: Text
    """Path of its agent's Unix socket."""
    snapshots: Text = ""
    """Folder through which it shares snapshots with its agent; empty where there is none."""
    free_slot: int = 0
    """The one of its two slots there that it may write first."""

    @property
    def place(self) -> MemberRecord:
        """The place of its member."""
        place = self.record.place_of_rank(self.rank)
        assert place is not None, f"generation {self.record.number} has no rank {self.rank}"
        return place
