"""Where the web page's jobs come from: a cluster, or folders of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import JobRecord
from regroup.local.checkpoint_list import SavedCheckpoint
from regroup_trainer.protocol.job_status import SeriesPoint


class SourceError(Exception):
    """Something cannot be shown. The message says why, and what to do."""


class NoSuchJobError(SourceError):
    """No job has this identifier."""


@dataclass(frozen=True)
class WorkerRow:
    """One worker, as the table shows it."""

    worker: int
    pod: str
    node: str
    state: str
    ranks: str
    """`2` or `2-3`; empty without a rank."""
    step: int | None
    """The last one that it reported; None where that is unknown."""
    note: str = ""
    """What is wrong with it."""


@dataclass(frozen=True)
class JobView:
    """One job with what belongs to it."""

    record: JobRecord
    workers: Sequence[WorkerRow]
    workers_left_out: int
    events: Sequence[EventRecord]
    """The newest first."""
    may_have_kept_series: bool = False
    """Whether `kept_series` may find points that `series` does not have."""
    workers_note: str = ""
    """What is not known of the workers, and why."""


@dataclass(frozen=True)
class CheckpointView:
    """A job's checkpoints."""

    saved: Sequence[SavedCheckpoint] = ()
    """The newest first."""
    note: str = ""
    """What is left out, and why."""


@dataclass(frozen=True)
class LogTail:
    """The last lines of a job's logs."""

    lines: Sequence[str]
    note: str = ""
    """What was left out."""


class JobSource(Protocol):
    """Each method may take seconds, is called in a thread of its own, beside others, and raises
    SourceError or ClusterError. A job's identifier is its key in `jobs`.
    """

    title: str
    """What it shows, in a few words."""

    def jobs(self) -> dict[str, JobRecord]:
        """All jobs by their identifiers."""

    def view(self, identifier: str) -> JobView:
        """A job with its workers and events."""

    def series(self, identifier: str) -> Sequence[SeriesPoint]:
        """Loss and rates over time, the oldest first."""

    def kept_series(self, identifier: str) -> Sequence[SeriesPoint]:
        """The same of a job that rests, as it lies on the volume. It may take minutes, and what
        must be started for it. `series` has these points afterwards, and `checkpoints` all.
        """

    def checkpoints(self, identifier: str) -> CheckpointView:
        """The checkpoints as far as they can be listed."""

    def logs(self, identifier: str, rank: int | None) -> LogTail:
        """The last lines of all ranks, or of one."""


def ranks_text(first: int | None, ranks: int) -> str:
    """The ranks of a worker that begins with `first` and has `ranks` of them."""
    if first is None:
        return ""
    return str(first) if ranks <= 1 else f"{first}-{first + ranks - 1}"
