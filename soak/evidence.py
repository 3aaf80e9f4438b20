"""What is known of a job when it is judged, and the file that keeps it for a later judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from soak import records
from soak.pod_states import PodLook
from soak.records import Line, Records, Stored

STUCK_SECONDS = 60.0
STUCK_SECONDS_TORCHRUN = 300.0
FILE = "seen.json"
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A job at one moment."""

    time: float
    """Seconds since the epoch."""
    step: int | None
    """Its newest step; None before the first."""


@dataclass(frozen=True)
class Hit:
    """A fault, and the ranks that lost their state by it or could not be reached."""

    time: float
    """Seconds since the epoch."""
    ranks: frozenset[int]
    size: int
    """Ranks of the job at that time."""
    pods: frozenset[str] = frozenset()
    """Of these ranks: their memory may be gone."""


@dataclass(frozen=True)
class WholeSnapshot:
    """A memory snapshot of which each shard is on two nodes, or on one if there is no other."""

    stored: Stored
    holders: tuple[frozenset[str], ...]
    """By shard: the members' pods that hold it."""


@dataclass(frozen=True)
class Kept:
    """The copies of the state outside the ranks, at one moment."""

    began: float
    ended: float
    """From when to when it was looked: seconds since the epoch."""
    snapshots: tuple[WholeSnapshot, ...]
    checkpoints: tuple[Stored, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What others saw of a job."""

    job: str
    kind: str
    program: str
    """The one whose undisturbed run it is compared with."""
    copy_size: int | None
    """So many ranks in a row hold a whole copy of the state; None: only all ranks together do."""
    snapshot_steps: int
    checkpoint_steps: int
    status: Json
    """At its end."""
    recoveries: tuple[Json, ...]
    """Each that the status ever showed, once."""
    samples: tuple[Sample, ...] = ()
    commits: tuple[Sample, ...] | None = None
    """What its ranks had committed, and when; None: a former soak did not look."""
    kept: tuple[Kept, ...] = ()
    looks: tuple[PodLook, ...] = ()
    min_replicas: int = 1
    """With fewer workers it cannot train."""
    excused: tuple[tuple[float, float], ...] = ()
    """From when to when nobody could expect steps: no answer of its volume, no power."""
    refusals: tuple[tuple[float, float], ...] = ()
    """From when to when its volume took no files."""
    hits: tuple[Hit, ...] = ()
    faults: tuple[str, ...] | None = None
    """The kinds of those that were tried on it, missed ones too; None: a former soak did not keep
    them.
    """
    duplicates: tuple[str, ...] = ()
    """A sentence for each moment with two pods of one worker."""
    stuck_seconds: float = STUCK_SECONDS
    was_suspended: bool = True
    """Whether it gave its pods back in time when it was asked to, at its end."""
    is_torchrun: bool = False
    """Under torchrun nobody but the script knows the steps, and it saves before it goes on."""


@dataclass(frozen=True, kw_only=True)
class Evidence(Seen):
    """All that is known of a job."""

    records: Records
    reference: Mapping[int, Line]
    """The steps of an undisturbed run."""


_SEEN = TypeAdapter(Seen)


def keep(seen: Seen, folder: Path) -> None:
    """Write it beside the job's lineage and history."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(_SEEN.dump_json(seen))


def kept_jobs(folder: Path) -> Sequence[Path]:
    """The folders of the jobs of a seed that can be judged anew."""
    return sorted(path.parent for path in folder.glob(f"*/{FILE}"))


def read(folder: Path, references: Mapping[str, Mapping[int, Line]]) -> Evidence:
    """What `keep` wrote, and the records beside it, with the undisturbed run of its program.

    Raises OSError, ValueError, and KeyError for a program without such a run.
    """
    seen = _SEEN.validate_json((folder / FILE).read_bytes())
    found = records.read(folder)
    return Evidence(**vars(seen), records=found, reference=references[seen.program])
