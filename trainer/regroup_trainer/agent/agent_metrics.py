"""The metrics of a worker pod: series of its own ranks, and of the job while rank 0 is here.

The agent outlives its ranks, so that these counters survive the fork of new ranks and never fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    Busy,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointStage,
    CollectiveOp,
    Evaluated,
    Finished,
    MemoryKind,
    Parked,
    Progress,
    Report,
    Restored,
)
from regroup_trainer.system.memory_limit import available_bytes, resident_bytes

disable_created_metrics()  # type: ignore[no-untyped-call]
Processes = Callable[[], Mapping[int, int]]
"""Returns rank -> process id of the ranks that run here."""
_Key = tuple[int, str]
"""A rank, and the value of the other label; empty where there is none."""

_JOB = ("namespace", "trainingjob")
_COMPUTE_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SAVE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_GAUGES = {
    "step": "Steps committed",
    "target_steps": "Steps in all",
    "epoch": "Passes over the data",
    "loss": "Mean loss per token of the last step in nats",
    "evaluation_loss": "Loss per token on the held-out part in nats",
    "gradient_norm": "Global gradient norm before clipping",
    "learning_rate": "Learning rate of the last step",
    "tokens_per_second": "Tokens per second, lately; absent where samples are counted",
    "samples_per_second": "Samples per second, lately, where the loss is one per sample",
    "mfu_ratio": ("Floating-point operations of the model per second over the peak of the GPUs"),
    "checkpoint_last_step": "Step of the newest checkpoint",
    "checkpoint_last_success_timestamp_seconds": (
        "When the newest checkpoint was published, since the epoch"
    ),
    "checkpoint_last_size_bytes": "Size of the newest checkpoint",
}


class _Shape(NamedTuple):
    """A family of series of ranks."""

    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    text: str
    together: Mapping[str, Callable[[Sequence[float]], float]]
    """Value of the other label -> what becomes of the ranks' values where one series is for all."""
    label: str = ""
    """The other label."""

    def all_of(self, values: Mapping[_Key, float]) -> dict[_Key, float]:
        """The values of all ranks together, as those of a rank -1."""
        found: dict[_Key, float] = {}
        for other, together in self.together.items():
            some = [value for (_, label), value in values.items() if label == other]
            if some:
                found[-1, other] = together(some)
        return found


_STEP = _Shape(GaugeMetricFamily, "step", "Steps that the rank has committed", {"": min})
_HEARTBEAT = _Shape(
    GaugeMetricFamily,
    "heartbeat_timestamp_seconds",
    "When the rank last reported anything, since the epoch",
    {"": min},
)
_MEMORY = _Shape(
    GaugeMetricFamily,
    "memory_bytes",
    "Memory that the rank uses, and what is left to it",
    {"host": sum, "host_available": min, "gpu": max, "gpu_available": min},
    "kind",
)
_DATA_WAIT = _Shape(
    CounterMetricFamily,
    "data_wait_seconds",
    "Time that the rank has waited for data",
    {"": sum},
)
_COLLECTIVES = _Shape(
    CounterMetricFamily,
    "collective_seconds",
    "Time that the rank has waited for others in collectives",
    dict.fromkeys(get_args(CollectiveOp), sum),
    "op",
)


class AgentMetrics:
    """The series of one worker."""

    def __init__(self, namespace: str, job: str, processes: Processes = dict) -> None:
        labels = (namespace, job)
        self._ranks = _RankSeries(labels, processes)
        self._job = _JobSeries(labels)
        self._has_rank_zero = False

    @property
    def registries(self) -> tuple[CollectorRegistry, ...]:
        """What to expose now. Only the pod of rank 0 exposes the series of the job."""
        ranks, job = self._ranks.registry, self._job.registry
        return (ranks, job) if self._has_rank_zero else (ranks,)

    def begin(self, record: GenerationRecord, ranks: range) -> None:
        """Enter a generation in which `ranks` run here."""
        self._has_rank_zero = 0 in ranks
        desired = record.desired
        self._ranks.begin(ranks, desired.shows_ranks(record.world_size))
        self._job.begin(0 if desired.script else desired.train.training.steps)

    def note(self, report: Report) -> None:
        """Apply a report of a rank of the current generation."""
        self._ranks.note(report)
        match report:
            case Progress(rank=0):
                self._job.note_progress(report)
            case Restored(rank=0):
                self._job.set("step", report.step)
            case Evaluated():
                self._job.set("evaluation_loss", report.loss)
            case CheckpointSaved():
                self._job.note_checkpoint(report)
            case CheckpointFailed():
                self._job.note_failed_checkpoint(report)


class _Totals:
    """Adds up what ranks report of one generation after another. It never falls."""

    def __init__(self) -> None:
        self.values: dict[_Key, float] = {}
        self._seen: dict[_Key, float] = {}

    def begin(self) -> None:
        """All begin from 0 again."""
        self._seen.clear()

    def note(self, key: _Key, value: float) -> None:
        """A rank has come so far in this generation."""
        more = max(0.0, value - self._seen.get(key, 0.0))
        self.values[key] = self.values.get(key, 0.0) + more
        self._seen[key] = value


class _RankSeries(Collector):
    """The series of the ranks of one worker; `labels` are namespace and name of the job.

    Where ranks are not shown, each series is of all of them together.
    """

    def __init__(self, labels: tuple[str, str], processes: Processes) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._labels = labels
        self._processes = processes
        self._ranks = range(0)
        self._shows_ranks = True
        self._measured: set[int] = set()
        """Ranks that the histogram has."""
        self._steps: dict[_Key, float] = {}
        self._heartbeats: dict[_Key, float] = {}
        self._reported_memory: dict[int, Mapping[MemoryKind, int]] = {}
        self._data_wait = _Totals()
        self._collectives = _Totals()
        self._compute = Histogram(
            "trainingjob_rank_compute_seconds",
            "Own time of a step, before any collective is waited for",
            (*_JOB, "rank"),
            buckets=_COMPUTE_BUCKETS,
            registry=self.registry,
        )

    def begin(self, ranks: range, shows_ranks: bool) -> None:
        """Forget the ranks of the former generation; counters of those that stay go on."""
        self._ranks, self._shows_ranks = ranks, shows_ranks
        self._steps.clear()
        self._heartbeats.clear()
        self._reported_memory.clear()
        self._data_wait.begin()
        self._collectives.begin()
        gone = self._measured - set(ranks if shows_ranks else ())
        for rank in gone:
            self._compute.remove(*self._labels, str(rank))
        self._measured -= gone

    def note(self, report: Report) -> None:
        """Apply a report that has just come."""
        self._heartbeats[report.rank, ""] = time.time()
        match report:
            case Progress():
                self._note_progress(report)
            case Busy(lasting=True):
                del self._heartbeats[report.rank, ""]  # none is due before its next step
            case Finished() | Parked() | RankExit():
                del self._heartbeats[report.rank, ""]
                self._reported_memory.pop(report.rank, None)

    def _note_progress(self, report: Progress) -> None:
        rank = report.rank
        self._steps[rank, ""] = report.step
        if report.compute_seconds and self._shows_ranks:
            self._measured.add(rank)
            self._compute.labels(*self._labels, str(rank)).observe(report.compute_seconds)
        self._data_wait.note((rank, ""), report.seconds.get("data_wait", 0.0))
        for op, seconds in report.collective_seconds.items():
            self._collectives.note((rank, op), seconds)
        self._reported_memory[rank] = report.memory_bytes

    def collect(self) -> Iterator[Metric]:
        """The series at this moment, but for the histogram."""
        yield self._family(_STEP, self._steps)
        yield self._family(_HEARTBEAT, self._heartbeats)
        yield self._family(_MEMORY, self._memory())
        yield self._family(_DATA_WAIT, self._data_wait.values)
        yield self._family(_COLLECTIVES, self._collectives.values)

    def _family(self, shape: _Shape, values: Mapping[_Key, float]) -> Metric:
        names = [*_JOB, *["rank"] * self._shows_ranks, *filter(None, [shape.label])]
        metric = shape.family(f"trainingjob_rank_{shape.name}", shape.text, labels=names)
        for (rank, other), value in (values if self._shows_ranks else shape.all_of(values)).items():
            shown = [*[str(rank)] * self._shows_ranks, *filter(None, [other])]
            if rank in self._ranks or not self._shows_ranks:
                metric.add_metric([*self._labels, *shown], value)
        return metric

    def _memory(self) -> dict[_Key, float]:
        processes = self._processes()
        left = available_bytes() if processes else 0
        found: dict[_Key, float] = {}
        for rank, process in processes.items():
            if (used := resident_bytes(process)) is not None:
                found |= {(rank, "host"): used, (rank, "host_available"): left}
        for rank, reported in self._reported_memory.items():
            found |= {(rank, kind): size for kind, size in reported.items()}
        return found


class _JobSeries:
    """The series of the job, as its rank 0 reports them; `labels` are its namespace and name."""

    def __init__(self, labels: tuple[str, str]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._labels = labels
        self._gauges = {
            name: Gauge(f"trainingjob_{name}", text, _JOB, registry=registry)
            for name, text in _GAUGES.items()
        }
        text = "Steps whose update was left out, since loss or gradients were not finite"
        self._skipped = Counter("trainingjob_nonfinite_steps", text, _JOB, registry=registry)
        self._skipped_seen = 0
        text = "Tokens trained on, or samples, repeated ones not counted twice"
        self._tokens = Counter("trainingjob_tokens", text, _JOB, registry=registry)
        self._tokens_seen = 0
        text = "Time of a checkpoint: while training stood still for it, and in all"
        self._save_seconds = Histogram(
            "trainingjob_checkpoint_save_seconds",
            text,
            (*_JOB, "mode"),
            buckets=_SAVE_BUCKETS,
            registry=registry,
        )
        text, names = "Checkpoints that could not be made", (*_JOB, "stage")
        self._failures = Counter("trainingjob_checkpoint_failures", text, names, registry=registry)
        for stage in get_args(CheckpointStage):
            self._failures.labels(*labels, stage)
        for mode in ("blocking", "background"):
            self._save_seconds.labels(*labels, mode)

    def begin(self, steps: int) -> None:
        """Enter a generation that trains to step `steps`."""
        self._skipped_seen = 0
        self.set("target_steps", steps)

    def set(self, name: str, value: float) -> None:
        """Set a gauge, by its name without prefix."""
        self._gauges[name].labels(*self._labels).set(value)

    def note_progress(self, report: Progress) -> None:
        """Apply the progress of rank 0."""
        self.set("step", report.step)
        if report.total_steps:
            self.set("target_steps", report.total_steps)
        self.set("epoch", report.epoch)
        self.set("loss", _or_nan(report.loss))
        self.set("gradient_norm", _or_nan(report.gradient_norm))
        self.set("learning_rate", report.learning_rate)
        if report.tokens:
            counted = "samples" if report.counts_samples else "tokens"
            self.set(f"{counted}_per_second", report.tokens_per_second)
        if report.mfu:
            self.set("mfu_ratio", report.mfu)
        self._skipped.labels(*self._labels).inc(max(0, report.skipped - self._skipped_seen))
        self._skipped_seen = max(report.skipped, self._skipped_seen)
        self._tokens.labels(*self._labels).inc(max(0, report.tokens - self._tokens_seen))
        self._tokens_seen = max(self._tokens_seen, report.tokens)

    def note_checkpoint(self, report: CheckpointSaved) -> None:
        """A checkpoint was published."""
        self.set("checkpoint_last_step", report.step)
        self.set("checkpoint_last_success_timestamp_seconds", report.time)
        self.set("checkpoint_last_size_bytes", report.size_bytes)
        self._save_seconds.labels(*self._labels, "blocking").observe(report.blocking_seconds)
        self._save_seconds.labels(*self._labels, "background").observe(report.seconds)

    def note_failed_checkpoint(self, report: CheckpointFailed) -> None:
        """A checkpoint could not be made."""
        self._failures.labels(*self._labels, report.stage).inc()


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
