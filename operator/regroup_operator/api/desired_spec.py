"""Derives the coordinator's Desired from a TrainingJob's spec, for the operator and for local
runs. Pure.
"""

from __future__ import annotations

from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import user_script
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired


def desired_of(
    spec: TrainingJobSpec,
    *,
    namespace: str,
    job: str,
    directory: str,
    replica_group_size: int,
    revision: int = 1,
) -> Desired:
    """The Desired that the spec asks for. `directory` is the job's own folder on the volume,
    `replica_group_size` counts workers, `revision` is metadata.generation.
    """
    detection, restarts = spec.failure_detection, spec.restart_policy
    script = user_script(spec.template)
    return Desired(
        revision=revision,
        namespace=namespace,
        job=job,
        replicas=spec.replicas,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        replica_group_size=replica_group_size,
        spares=spec.spares,
        suspend=spec.suspend,
        heartbeat_milliseconds=detection.heartbeat_milliseconds,
        timeout_milliseconds=detection.timeout_milliseconds,
        max_restarts=restarts.max_restarts,
        max_hang_restarts=restarts.max_hang_restarts,
        straggler_percent=detection.straggler_percent,
        progress_timeout_seconds=detection.progress_timeout_seconds,
        backoff_seconds=restarts.backoff_seconds,
        max_backoff_seconds=restarts.max_backoff_seconds,
        train=spec.trainer or TrainConfig(),
        script=script.arguments if script else (),
        accelerate=script.flags.accelerate if script else None,
        progress_pattern=spec.progress_pattern or "",
        rank_detail=spec.metrics.rank_detail,
        checkpoint=spec.checkpoint.policy,
        resume=spec.resume.plain,
        directory=directory,
    )
