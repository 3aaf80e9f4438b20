"""What a scrape of each program shows once everything that it counts has happened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from regroup_operator.api.status import Condition, RecoveryStatus, TrainingJobStatus
from regroup_operator.controller import operator_metrics
from regroup_operator.informer import request_metrics
from regroup_operator.leadership.election import leads
from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.coordinator.coordinator_metrics import make_registry
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Progress,
)
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.coordinator_simulation import start_job
from tests.support.generations import make_generation
from tests.support.operator_simulation import Simulation

NUMBER = GenerationNumber(1, 1)
Program = Callable[[], str]


DEGRADED = Condition(
    type="Degraded",
    status="True",
    reason="NoProgress",
    message="rank 1 hangs",
    last_transition_time="2026-01-01T00:00:00Z",
)


def operator() -> str:
    """Of an operator that leads and has one job, in the text format of Prometheus."""
    leads.labels(name="regroup-operator").set(1)
    operator_metrics.count_reconcile(0.1, failed=True)
    operator_metrics.show_depth(lambda: 0)
    operator_metrics.count_added()
    operator_metrics.count_taken(waited=0.1)
    request_metrics.count_request("GET", 200)
    request_metrics.count_list("pods")
    request_metrics.count_unreadable("pods")
    job = Simulation().job()
    operator_metrics.job_series.observe(job, job.status, None)
    waiting = Waiting.of(WaitingReason.Unschedulable, "no node fits")
    operator_metrics.job_series.observe(job, _recovered_and_degraded(), waiting)
    text = _text(REGISTRY)
    operator_metrics.job_series.forget(job.key)
    return text


def coordinator() -> str:
    """Of a coordinator that has lost a worker and found a straggler."""
    job, agents = start_job(steps=10_000)
    job.cut_off(agents[2])
    job.wait(3.0)
    job.pace[1] = 2.0
    job.wait(20.0)
    return _text(make_registry(job.core.state))


def agent() -> str:
    """Of the agent of rank 0, which has saved a checkpoint and failed to save the next one."""
    metrics = AgentMetrics("default", "gpt", lambda: {0: os.getpid()})
    metrics.begin(make_generation(1, 1), range(1))
    one = {"generation": NUMBER, "rank": 0, "step": 20}
    saved = {"path": "p", "size_bytes": 7, "seconds": 2.0, "blocking_seconds": 0.5, "time": 99.0}
    measured = {"compute_seconds": 0.1, "collective_seconds": {"gradients": 0.1, "commit": 0.01}}
    trained = {**one, "time": 0.0, "loss": 2.0, "tokens": 640, "mfu": 0.4, **measured}
    for counts_samples in (False, True):  # a job does one of them
        metrics.note(Progress.model_validate({**trained, "counts_samples": counts_samples}))
    metrics.note(Evaluated.model_validate({**one, "loss": 1.25}))
    metrics.note(CheckpointSaved.model_validate({**one, **saved}))
    metrics.note(CheckpointFailed.model_validate({**one, "stage": "write", "error": "disk full"}))
    return "".join(_text(registry) for registry in metrics.registries)


def _recovered_and_degraded() -> TrainingJobStatus:
    recovery = RecoveryStatus(
        time="2026-01-01T00:00:00Z",
        cause="hang",
        restored_from="Peers",
        generation="1.2",
        down_seconds=3.5,
    )
    return TrainingJobStatus(recoveries=(recovery,), conditions=(DEGRADED,))


def _text(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


PROGRAMS = (operator, coordinator, agent)


class Series(NamedTuple):
    """One metric family."""

    name: str
    """As queries have it: that of a counter ends in `_total`."""
    type: str
    labels: frozenset[str]
    text: str
    """Its help."""


def exported(*programs: Program) -> list[Series]:
    """The metric families of these programs, or of all, that are ours."""
    shown = programs or PROGRAMS
    families = [one for program in shown for one in text_string_to_metric_families(program())]
    return [_series(one) for one in families if not re.match(r"python_|process_", one.name)]


def _series(family: Metric) -> Series:
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    name = family.name + "_total" * (family.type == "counter")
    return Series(name, family.type, frozenset(labels), family.documentation)
