"""A source of the web page's jobs in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from regroup.kubernetes.event_record import read_events
from regroup.kubernetes.job_record import JobRecord, read_job
from regroup.local.checkpoint_list import SavedCheckpoint
from regroup.web_page.job_source import (
    CheckpointView,
    JobView,
    LogTail,
    NoSuchJobError,
    SourceError,
    WorkerRow,
)
from regroup_trainer.protocol.job_status import SeriesPoint
from tests.support.cluster_objects import event_object, job_object, running_status

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@dataclass
class PageSource:
    """Jobs `job-0`, `job-1` ... that train, and write what a hostile user would."""

    count: int = 1
    lines: Sequence[str] = (f"rank 0: {HOSTILE}",)
    knows_steps: bool = True
    """Whether it knows the step of each worker."""
    rests: bool = False
    """Whether its jobs have ended, and left their series on a volume."""
    kept_error: str = ""
    """What reading that raises; empty: it does not."""
    error: str = ""
    """What every read raises; empty: none does."""
    reads: Counter[str] = field(default_factory=Counter)
    title: str = "Jobs of a test"

    def jobs(self) -> dict[str, JobRecord]:
        self._read("jobs")
        return {f"team/job-{n}": self._job(f"job-{n}") for n in range(self.count)}

    def view(self, identifier: str) -> JobView:
        self._read("view")
        name = identifier.removeprefix("team/")
        if identifier not in {f"team/job-{n}" for n in range(self.count)}:
            raise NoSuchJobError(f"there is no job {identifier!r}")
        step = 120 if self.knows_steps else None
        workers = [
            WorkerRow(n, f"{name}-w{n}-1", f"n{n}", "Training", str(n), step) for n in range(3)
        ]
        events = read_events([event_object("WorkerLost", HOSTILE, ago=90)])
        return JobView(self._job(name), workers, 0, events, may_have_kept_series=self.rests)

    def series(self, identifier: str) -> Sequence[SeriesPoint]:
        self._read("series")
        if self.rests and not self.reads["kept series"]:
            return []
        return [
            SeriesPoint(time=1e9 + n, step=n, world_size=3, loss=3.0 - n / 100) for n in range(100)
        ]

    def kept_series(self, identifier: str) -> Sequence[SeriesPoint]:
        if self.kept_error:
            raise SourceError(self.kept_error)
        self._read("kept series")
        return self.series(identifier)

    def checkpoints(self, identifier: str) -> CheckpointView:
        self._read("checkpoints")
        saved = SavedCheckpoint(step=100, path=f"/data/{HOSTILE}", size_bytes=13_000_000)
        return CheckpointView([saved])

    def logs(self, identifier: str, rank: int | None) -> LogTail:
        self._read("logs")
        begin = "" if rank is None else f"rank {rank}: "
        return LogTail([line for line in self.lines if line.startswith(begin)])

    def _job(self, name: str) -> JobRecord:
        return read_job(job_object(running_status(message=HOSTILE), name=name))

    def _read(self, what: str) -> None:
        self.reads[what] += 1
        if self.error:
            raise SourceError(self.error)
