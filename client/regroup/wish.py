"""A TrainingJob's spec as the coordinator's Desired, for a run without an operator."""

from __future__ import annotations

from regroup_operator.api import TrainingJobSpec
from regroup_operator.launcher import own_script
from regroup_operator.replica_groups import require_whole_groups, workers_of_ranks, workers_per_group
from regroup_trainer.config import ResumePolicy, TrainConfig
from regroup_trainer.contract import Desired


def local_desired(spec: TrainingJobSpec, job: str, directory: str, workers: int | None = None) -> Desired:
    """What to train and with how many local workers; `workers` overrides `replicas` within the elastic bounds.

    Raises ValueError when they are not whole replica groups: a local worker has one rank where nprocPerNode is auto.
    """
    detection, restarts = spec.failure_detection, spec.restart_policy
    replicas = workers or spec.replicas
    group = _workers_per_group(spec)
    require_whole_groups(group, replicas, replicas)  # the fewest are rounded up to whole groups
    return Desired(
        revision=1,
        namespace="local",
        job=job,
        replicas=replicas,
        min_replicas=min(spec.min_replicas, replicas),
        max_replicas=max(spec.max_replicas, workers or spec.max_replicas),
        replica_group_size=group,
        spares=spec.spares,
        heartbeat_milliseconds=detection.heartbeat_milliseconds,
        timeout_milliseconds=detection.timeout_milliseconds,
        max_restarts=restarts.max_restarts,
        max_hang_restarts=restarts.max_hang_restarts,
        straggler_percent=detection.straggler_percent,
        progress_timeout_seconds=detection.progress_timeout_seconds,
        backoff_seconds=float(restarts.backoff_seconds),
        max_backoff_seconds=float(restarts.max_backoff_seconds),
        train=spec.trainer or TrainConfig(),
        script=script.arguments if (script := own_script(spec.template)) else (),
        checkpoint=spec.checkpoint.policy,
        resume=ResumePolicy.model_validate(spec.resume.model_dump(include=set(ResumePolicy.model_fields))),
        directory=directory,
    )


def _workers_per_group(spec: TrainingJobSpec) -> int:
    # What the file says of workers with GPUs need not hold for local ones.
    return workers_per_group(spec) if spec.trainer is None else workers_of_ranks(spec, ranks_per_worker(spec))


def ranks_per_worker(spec: TrainingJobSpec) -> int:
    """Rank processes of a local worker."""
    return spec.nproc_per_node if isinstance(spec.nproc_per_node, int) else 1
