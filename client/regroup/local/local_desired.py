"""Derives the coordinator's Desired from a TrainingJob's spec, for a local run."""

from __future__ import annotations

from regroup_operator.api.desired_spec import desired_of
from regroup_operator.api.replica_groups import (
    require_whole_groups,
    workers_of_ranks,
    workers_per_group,
)
from regroup_operator.api.spec import TrainingJobSpec
from regroup_trainer.protocol.desired import Desired


def local_desired(
    spec: TrainingJobSpec, job: str, directory: str, workers: int | None = None
) -> Desired:
    """What to train and with how many local workers. `workers` overrides `replicas`.

    Raises ValueError when the workers are not whole replica groups. A local worker has one rank
    where nprocPerNode is auto.
    """
    replicas = workers or spec.replicas
    group = _workers_per_group(spec)
    require_whole_groups(group, replicas, replicas)  # the fewest are rounded up to whole groups
    desired = desired_of(
        spec, namespace="local", job=job, directory=directory, replica_group_size=group
    )
    return desired.model_copy(
        update={
            "replicas": replicas,
            "min_replicas": min(spec.min_replicas, replicas),
            "max_replicas": max(spec.max_replicas, workers or spec.max_replicas),
            "suspend": False,
        }
    )


def _workers_per_group(spec: TrainingJobSpec) -> int:
    # The group size of workers with GPUs need not be that of local workers.
    return (
        workers_per_group(spec)
        if spec.trainer is None
        else workers_of_ranks(spec, ranks_per_worker(spec))
    )


def ranks_per_worker(spec: TrainingJobSpec) -> int:
    """Rank processes of a local worker."""
    return spec.nproc_per_node if isinstance(spec.nproc_per_node, int) else 1
