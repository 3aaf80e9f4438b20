"""The metrics of a worker pod: series of its own ranks, and of the job while rank 0 is here.

The agent outlives its ranks, so that these counters survive the fork of new ranks and never fall.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from regroup_trainer.protocol.generation import GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Progress,
    Report,
    Restored,
)

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
    "learning_rate": "Of the last step",
    "tokens_per_second": "Tokens trained on per second, lately",
    "checkpoint_last_step": "Step of the newest checkpoint",
    "checkpoint_last_success_timestamp_seconds": "When it was published, since the epoch",
    "checkpoint_last_size_bytes": "Its size",
}


class AgentMetrics:
    """The series of one worker."""

    def __init__(self, namespace: str, job: str) -> None:
        labels = (namespace, job)
        self._ranks = _RankSeries(labels)
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
        self._ranks.begin()
        desired = record.desired
        self._job.begin(0 if desired.script else desired.train.training.steps)

    def note(self, report: Report) -> None:
        """Apply a report of a rank of the current generation."""
        match report:
            case Progress():
                self._ranks.note(report)
                if report.rank == 0:
                    self._job.note_progress(report)
            case Restored(rank=0):
                self._job.set("step", report.step)
            case Evaluated():
                self._job.set("evaluation_loss", report.loss)
            case CheckpointSaved():
                self._job.note_checkpoint(report)
            case CheckpointFailed():
                self._job.note_failed_checkpoint(report)


class _RankSeries:
    """The series of the ranks of one worker; `labels` are namespace and name of the job."""

    def __init__(self, labels: tuple[str, str]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._labels = labels
        self._data_wait_seen: dict[int, float] = {}
        names = (*_JOB, "rank")
        text = "Steps that the rank has committed"
        self._step = Gauge("trainingjob_rank_step", text, names, registry=self.registry)
        text = "Own time of a step, before any collective is waited for"
        self._compute = Histogram(
            "trainingjob_rank_compute_seconds",
            text,
            names,
            buckets=_COMPUTE_BUCKETS,
            registry=self.registry,
        )
        text = "Time that the rank has waited for data"
        self._data_wait = Counter(
            "trainingjob_rank_data_wait_seconds", text, names, registry=self.registry
        )

    def begin(self) -> None:
        """Forget the ranks of the former generation; counters go on."""
        self._data_wait_seen.clear()
        self._step.clear()

    def note(self, report: Progress) -> None:
        """Apply the progress of a rank."""
        labels = (*self._labels, str(report.rank))
        self._step.labels(*labels).set(report.step)
        if report.compute_seconds:
            self._compute.labels(*labels).observe(report.compute_seconds)
        waited = report.seconds.get("data_wait", 0.0)
        self._data_wait.labels(*labels).inc(
            max(0.0, waited - self._data_wait_seen.get(report.rank, 0.0))
        )
        self._data_wait_seen[report.rank] = waited


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
        text = "Tokens trained on, repeated ones not counted twice"
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
        self.set("tokens_per_second", report.tokens_per_second)
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
