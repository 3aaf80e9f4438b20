"""What a worker pod exposes: series of its own ranks, and the job's series while rank 0 is here.

The agent outlives its ranks, so the counters here survive a re-fork and never fall.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from regroup_trainer.contract import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    GenerationRecord,
    Progress,
    Report,
    Restored,
)

_JOB = ("namespace", "trainingjob")
_COMPUTE_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SAVE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class AgentMetrics:
    """Series of one worker."""

    def __init__(self, namespace: str, job: str) -> None:
        self._labels = (namespace, job)
        self._registry = CollectorRegistry(auto_describe=False)
        self._job_registry = CollectorRegistry(auto_describe=False)
        self._has_rank_zero = False
        self._data_wait_seen: dict[int, float] = {}
        self._make_rank_series()
        self._make_job_series()

    @property
    def registries(self) -> tuple[CollectorRegistry, ...]:
        """What to expose now: the job's series are rank 0's alone, else two pods would tell different ones."""
        return (self._registry, self._job_registry) if self._has_rank_zero else (self._registry,)

    def begin(self, record: GenerationRecord, ranks: range) -> None:
        """A generation in which `ranks` run here."""
        self._has_rank_zero = 0 in ranks
        self._data_wait_seen.clear()
        self._skipped_seen = 0
        self._rank_step.clear()
        self._gauge["target_steps"].labels(*self._labels).set(record.desired.train.training.steps)

    def note(self, report: Report) -> None:
        """Take over what a rank of the current generation told."""
        match report:
            case Progress():
                self._note_rank(report)
                if report.rank == 0:
                    self._note_progress(report)
            case Restored(rank=0):
                self._gauge["step"].labels(*self._labels).set(report.step)
            case Evaluated():
                self._gauge["evaluation_loss"].labels(*self._labels).set(report.loss)
            case CheckpointSaved():
                self._note_checkpoint(report)
            case CheckpointFailed():
                self._checkpoint_failures.labels(*self._labels, report.stage).inc()

    def _make_rank_series(self) -> None:
        labels = (*_JOB, "rank")
        text = "Steps that the rank has committed"
        self._rank_step = Gauge("trainingjob_rank_step", text, labels, registry=self._registry)
        text = "Own time of a step, before any collective is waited for"
        self._compute = Histogram(
            "trainingjob_rank_compute_seconds", text, labels, buckets=_COMPUTE_BUCKETS, registry=self._registry
        )
        text = "Time that the rank has waited for data"
        self._data_wait = Counter("trainingjob_rank_data_wait_seconds", text, labels, registry=self._registry)

    def _make_job_series(self) -> None:
        registry = self._job_registry
        self._gauge = {
            name: Gauge(f"trainingjob_{name}", text, _JOB, registry=registry) for name, text in _JOB_GAUGES.items()
        }
        text = "Steps whose update was left out, since loss or gradients were not finite"
        self._skipped = Counter("trainingjob_nonfinite_steps", text, _JOB, registry=registry)
        self._skipped_seen = 0
        text = "Tokens trained on, repeated ones not counted twice"
        self._tokens = Counter("trainingjob_tokens", text, _JOB, registry=registry)
        self._tokens_seen = 0
        text = "Time of a checkpoint: while training stood still for it, and in all"
        labels = (*_JOB, "mode")
        self._save_seconds = Histogram(
            "trainingjob_checkpoint_save_seconds", text, labels, buckets=_SAVE_BUCKETS, registry=registry
        )
        labels = (*_JOB, "stage")
        text = "Checkpoints that could not be made"
        self._checkpoint_failures = Counter("trainingjob_checkpoint_failures", text, labels, registry=registry)

    def _note_rank(self, report: Progress) -> None:
        labels = (*self._labels, str(report.rank))
        self._rank_step.labels(*labels).set(report.step)
        if report.compute_seconds:
            self._compute.labels(*labels).observe(report.compute_seconds)
        waited = report.seconds.get("data_wait", 0.0)
        self._data_wait.labels(*labels).inc(max(0.0, waited - self._data_wait_seen.get(report.rank, 0.0)))
        self._data_wait_seen[report.rank] = waited

    def _note_progress(self, report: Progress) -> None:
        values = {
            "step": report.step,
            "epoch": report.epoch,
            "loss": float("nan") if report.loss is None else report.loss,
            "gradient_norm": float("nan") if report.gradient_norm is None else report.gradient_norm,
            "learning_rate": report.learning_rate,
            "tokens_per_second": report.tokens_per_second,
        }
        for name, value in values.items():
            self._gauge[name].labels(*self._labels).set(value)
        self._skipped.labels(*self._labels).inc(max(0, report.skipped - self._skipped_seen))
        self._skipped_seen = max(report.skipped, self._skipped_seen)
        self._tokens.labels(*self._labels).inc(max(0, report.tokens - self._tokens_seen))
        self._tokens_seen = max(self._tokens_seen, report.tokens)

    def _note_checkpoint(self, report: CheckpointSaved) -> None:
        self._gauge["checkpoint_last_step"].labels(*self._labels).set(report.step)
        self._gauge["checkpoint_last_success_timestamp_seconds"].labels(*self._labels).set(report.time)
        self._gauge["checkpoint_last_size_bytes"].labels(*self._labels).set(report.size_bytes)
        self._save_seconds.labels(*self._labels, "blocking").observe(report.blocking_seconds)
        self._save_seconds.labels(*self._labels, "background").observe(report.seconds)


_JOB_GAUGES = {
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
