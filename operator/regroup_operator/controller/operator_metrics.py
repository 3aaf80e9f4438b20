"""The operator's metrics: series about the jobs, and controller-runtime's conventional series.

A scrape reads the series of a job from its last status, so that they vanish with the job.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import (
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import REGISTRY, Collector

from regroup_operator.api.resource import Key
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_operator.controller import internal_error
from regroup_operator.observe.observed import AnyJob, Job
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.ledger import Cause

CONTROLLER = "trainingjob"
SCRAPES_AT_ONCE = 16
"""Connections to /metrics. Each has a thread."""
SCRAPE_SECONDS = 10.0
"""The longest wait for a part of a request, or for its sender to take a part of the answer."""
REQUEST_BYTES = 16 * 1024
"""Of a scrape's request line and headers. What is beyond them is not read."""

disable_created_metrics()  # type: ignore[no-untyped-call]
queue_depth = Gauge("workqueue_depth", "Keys that wait.", ["name"])
queue_adds = Counter("workqueue_adds", "Keys added; one that waits already is not.", ["name"])
queue_retries = Counter("workqueue_retries", "Keys that came back after a failure.", ["name"])
queue_wait = Histogram("workqueue_queue_duration_seconds", "Time that a key waited.", ["name"])
work_time = Histogram("workqueue_work_duration_seconds", "Time that a key was worked on.", ["name"])
reconciles = Counter(
    "controller_runtime_reconcile", "Reconciles by result.", ["controller", "result"]
)
reconcile_errors = Counter(
    "controller_runtime_reconcile_errors", "Reconciles that failed.", ["controller"]
)
reconcile_time = Histogram(
    "controller_runtime_reconcile_time_seconds", "Time of a reconcile.", ["controller"]
)
internal_errors = Counter(
    "trainingjob_internal_errors",
    "Errors that the operator does not know, in rounds and in following coordinators; its log has "
    "each.",
)
for _result in ("success", "error"):
    reconciles.labels(controller=CONTROLLER, result=_result)
reconcile_errors.labels(controller=CONTROLLER)
queue_retries.labels(name=CONTROLLER)
recovery_seconds = Histogram(
    "trainingjob_recovery_seconds",
    "From the last step before a loss to the first after it.",
    ["namespace", "trainingjob", "cause", "restored_from"],
    buckets=(0.25, 0.5, 1, 2, 3, 5, 10, 20, 40, 80, 160, 320, 640),
)


def count_reconcile(seconds: float, *, failed: bool) -> None:
    """Count a reconcile that took so many seconds; one that failed is tried again."""
    reconciles.labels(controller=CONTROLLER, result="error" if failed else "success").inc()
    reconcile_time.labels(controller=CONTROLLER).observe(seconds)
    work_time.labels(name=CONTROLLER).observe(seconds)
    if failed:
        reconcile_errors.labels(controller=CONTROLLER).inc()
        queue_retries.labels(name=CONTROLLER).inc()


def count_internal_error() -> None:
    """A round, or following a coordinator, has ended in an error that nothing expects."""
    internal_errors.inc()


def show_depth(waiting: Callable[[], int]) -> None:
    """Have each scrape ask how many keys wait."""
    queue_depth.labels(name=CONTROLLER).set_function(waiting)


def count_added() -> None:
    """A key was added to the queue."""
    queue_adds.labels(name=CONTROLLER).inc()


def count_taken(waited: float) -> None:
    """A key was taken from the queue, in which it had waited for so many seconds."""
    queue_wait.labels(name=CONTROLLER).observe(waited)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a scrape shows of a job. Its status takes ten times the memory."""

    phase: Phase | None
    workers: tuple[tuple[str, int], ...]
    """State and number."""
    restarts: tuple[tuple[str, int], ...]
    """Cause and number."""
    lost_steps: int
    excluded: int
    waiting: str
    """Reason; empty: it is ready."""
    degraded: str


class JobSeries(Collector):
    """The series of all jobs, from their last written statuses."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Shown] = {}
        self._observed_recoveries: dict[Key, set[str]] = {}
        self._recovery_labels: dict[Key, set[tuple[str, ...]]] = {}
        """Of the series that each job has."""
        self._failed: set[Key] = set()
        """Jobs whose last round ended in an error that nothing expects."""

    def observe(self, job: AnyJob, status: TrainingJobStatus, waiting: Waiting | None) -> None:
        """Remember a job as it was just written, and observe the recoveries that are complete
        now.
        """
        known = self._observed_recoveries.get(job.key)
        complete = [r for r in status.recoveries if r.down_seconds is not None]
        for recovery in complete:
            was_there = recovery in job.status.recoveries
            if was_there if known is None else recovery.generation in known:
                continue
            labels = (*job.key, recovery.cause, recovery.restored_from)
            self._recovery_labels.setdefault(job.key, set()).add(labels)
            recovery_seconds.labels(*labels).observe(recovery.down_seconds or 0.0)
        self._observed_recoveries[job.key] = {recovery.generation for recovery in complete}
        self._jobs[job.key] = _shown(job, status, waiting)
        self._failed.discard(job.key)

    def fail(self, key: Key) -> None:
        """A round for the job has ended in an error that nothing expects."""
        self._failed.add(key)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._jobs.pop(key, None)
        self._failed.discard(key)
        self._observed_recoveries.pop(key, None)
        for labels in self._recovery_labels.pop(key, set()):
            recovery_seconds.remove(*labels)

    def collect(self) -> Iterator[Metric]:
        """The series of all jobs, for a scrape. One family at a time: of a thousand jobs each takes
        megabytes.
        """
        # In a thread of its own, while jobs come and go. Nothing else runs while copy() does.
        jobs, failed = self._jobs.copy(), self._failed.copy()
        for kind, name, text, label, rows in _FAMILIES:
            family = kind(name, text, labels=[*_OF_JOB, *label])
            for key, job in jobs.items():
                for values, number in rows(job):
                    family.add_metric([*key, *values], number)
            yield family
        waiting = {key: job.waiting for key, job in jobs.items() if job.waiting}
        wait = GaugeMetricFamily(
            "trainingjob_waiting",
            "1 for the reason why the job is not ready; absent while it is.",
            labels=[*_OF_JOB, "reason"],
        )
        for key, reason in {**waiting, **dict.fromkeys(failed, internal_error.REASON)}.items():
            wait.add_metric([*key, reason], 1.0)
        yield wait


_OF_JOB = ("namespace", "trainingjob")
_Family = type[GaugeMetricFamily | CounterMetricFamily]
_Rows = Callable[[_Shown], Iterable[tuple[tuple[str, ...], float]]]
_FAMILIES: tuple[tuple[_Family, str, str, tuple[str, ...], _Rows], ...] = (
    (
        GaugeMetricFamily,
        "trainingjob_status_phase",
        "1 for the current phase.",
        ("phase",),
        lambda job: (((name,), float(job.phase == name)) for name in get_args(Phase)),
    ),
    (
        GaugeMetricFamily,
        "trainingjob_workers",
        "Workers by state.",
        ("state",),
        lambda job: (((state,), count) for state, count in job.workers),
    ),
    (
        CounterMetricFamily,
        "trainingjob_restarts",
        "Recoveries by cause.",
        ("cause",),
        lambda job: (((cause,), count) for cause, count in job.restarts),
    ),
    (
        CounterMetricFamily,
        "trainingjob_lost_steps",
        "Steps done again.",
        (),
        lambda job: [((), job.lost_steps)],
    ),
    (
        GaugeMetricFamily,
        "trainingjob_nodes_excluded",
        "Nodes that the job avoids.",
        (),
        lambda job: [((), job.excluded)],
    ),
    (
        GaugeMetricFamily,
        "trainingjob_degraded",
        "1 for the reason why the job trains with less than it should; absent else.",
        ("reason",),
        lambda job: [((job.degraded,), 1.0)] if job.degraded else [],
    ),
)
"""Kind, name and description of each family of series, its further label, and its series of a job.
"""


def _shown(job: AnyJob, status: TrainingJobStatus, waiting: Waiting | None) -> _Shown:
    condition = status.condition("Degraded")
    return _Shown(
        phase=status.phase,
        workers=_workers(job, status),
        restarts=tuple((cause, getattr(status.restarts, cause)) for cause in get_args(Cause)),
        lost_steps=status.goodput.lost_steps,
        excluded=len(status.excluded_nodes),
        waiting=waiting.reason if waiting else "",
        degraded=condition.reason if condition and condition.status == "True" else "",
    )


def _workers(job: AnyJob, status: TrainingJobStatus) -> tuple[tuple[str, int], ...]:
    ready = ("ready", status.ready_replicas)
    if not isinstance(job, Job):
        return (ready,)
    spec = job.spec
    wanted = ("desired", spec.replicas), ("min", spec.min_replicas), ("max", spec.max_replicas)
    return ready, *wanted


job_series = JobSeries()
REGISTRY.register(job_series)


class _Server(ThreadingWSGIServer):
    """Has a bound of connections, since whoever reaches the port can open them. The oldest one
    makes room, so that a flood of idle ones pushes itself out.
    """

    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: dict[socket.socket, None] = {}
        """Oldest first."""
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection."""
        request.settimeout(SCRAPE_SECONDS)
        with self._lock:
            self._open[request] = None
            if len(self._open) > SCRAPES_AT_ONCE:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Its thread has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut is nothing to write of."""


class _Beginning(io.BufferedIOBase):
    """The first bytes of what arrives. What is beyond them is never read."""

    def __init__(self, whole: io.BufferedIOBase) -> None:
        self._whole = whole
        self._left = REQUEST_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line, or what is left of it."""
        most = self._left if size is None or size < 0 else min(size, self._left)
        line = self._whole.readline(most)
        self._left -= len(line)
        return line

    def close(self) -> None:
        """Close what it reads from."""
        self._whole.close()
        super().close()


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Bound what is read: http.server takes a hundred headers of 64 KiB each."""
        super().setup()
        self.rfile = _Beginning(self.rfile)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not logged."""


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve_metrics(port: int, address: str = "0.0.0.0") -> ThreadingWSGIServer:
    """Serve /metrics on a port (0: any free one), in a thread, until the process ends. Raises
    OSError.
    """
    server = make_server(address, port, make_wsgi_app(), _Server, _Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
