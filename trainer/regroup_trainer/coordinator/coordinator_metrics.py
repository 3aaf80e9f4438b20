"""The coordinator's metrics, read from its state at each scrape."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from regroup_trainer.coordinator.accounting import DETECTION_BUCKETS
from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.protocol.ledger import GpuUse

PHASES = (
    "pending", "startup", "rendezvous", "step", "data_wait", "checkpoint_save",
    "checkpoint_restore", "evaluation",
    "idle",
)  # fmt: skip
_LABELS = ("namespace", "trainingjob")


class CoordinatorCollector(Collector):
    """The series of one job. Counters come from the ledger, which never falls. Times of detection
    are not in it: each coordinator counts its own, from 0.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """The series at this moment."""
        labels = (self._state.desired.namespace, self._state.desired.job)
        yield self._generation(labels)
        yield self._world_size(labels)
        yield from self._ledger(labels)
        yield self._detections(labels)
        yield self._heartbeat_delay(labels)
        yield from self._slowest(labels)
        yield self._volume(labels)

    def _generation(self, labels: tuple[str, str]) -> Metric:
        metric = GaugeMetricFamily(
            "trainingjob_generation", "n of the current generation", labels=_LABELS
        )
        current = self._state.current
        metric.add_metric(labels, current.number.n if current else 0)
        return metric

    def _world_size(self, labels: tuple[str, str]) -> Metric:
        current = self._state.current
        metric = GaugeMetricFamily("trainingjob_world_size", "Ranks that train", labels=_LABELS)
        metric.add_metric(labels, current.world_size if current and current.alive else 0)
        return metric

    def _volume(self, labels: tuple[str, str]) -> Metric:
        text = "Whether the volume is full or read-only, or does not answer"
        metric = GaugeMetricFamily("trainingjob_volume_unavailable", text, labels=_LABELS)
        metric.add_metric(labels, float(self._state.volume.problem is not None))
        return metric

    def _ledger(self, labels: tuple[str, str]) -> Iterable[Metric]:
        ledger = self._state.account.ledger()
        text = "Wall time of the job by what it was spent on"
        times = CounterMetricFamily("trainingjob_time_seconds", text, labels=(*_LABELS, "phase"))
        for phase in PHASES:
            times.add_metric((*labels, phase), ledger.seconds.get(phase, 0.0))
        yield times
        lost = CounterMetricFamily(
            "trainingjob_lost_work_seconds", "Time of steps that were done again", labels=_LABELS
        )
        lost.add_metric(labels, ledger.lost_work_seconds)
        yield lost
        text = "Time of all GPUs of the job by use, and without GPUs of all its ranks"
        gpus = CounterMetricFamily("trainingjob_gpu_seconds", text, labels=(*_LABELS, "use"))
        for use in get_args(GpuUse):
            gpus.add_metric((*labels, use), ledger.gpu_seconds.get(use, 0.0))
        yield gpus

    def _detections(self, labels: tuple[str, str]) -> Metric:
        metric = HistogramMetricFamily(
            "trainingjob_detection_seconds",
            "From the last sign of life to the detection, by this coordinator alone",
            labels=(*_LABELS, "cause"),
        )
        bounds = [*map(str, DETECTION_BUCKETS), "+Inf"]
        for cause, times in self._state.detections.items():
            buckets = [*zip(bounds, accumulate(times.counts), strict=True)]
            metric.add_metric((*labels, cause), buckets, times.seconds)
        return metric

    def _heartbeat_delay(self, labels: tuple[str, str]) -> Metric:
        text = "How late the heartbeats of any worker were sent, at most, in the last 30 s"
        metric = GaugeMetricFamily("trainingjob_heartbeat_delay_seconds", text, labels=_LABELS)
        metric.add_metric(labels, max((m.delay for m in self._state.members.values()), default=0))
        return metric

    def _slowest(self, labels: tuple[str, str]) -> Iterable[Metric]:
        current = self._state.current
        excess = current.pace.excess if current else {}
        if not excess:
            return
        rank = max(excess, key=lambda rank: excess[rank])
        text = "Own time of the slowest rank over that of the median rank"
        ratio = GaugeMetricFamily("trainingjob_straggler_ratio", text, labels=_LABELS)
        ratio.add_metric(labels, 1 + excess[rank])
        yield ratio
        slowest = GaugeMetricFamily(
            "trainingjob_slowest_rank", "The rank that computes longest", labels=_LABELS
        )
        slowest.add_metric(labels, rank)
        yield slowest


def make_registry(state: State) -> CollectorRegistry:
    """A registry with the series of this coordinator only."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CoordinatorCollector(state))
    return registry
