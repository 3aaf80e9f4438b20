"""Replica groups: the workers that must all be there for one copy of the model. Pure.

How many ranks hold a copy follows from `trainer.parallelism`; how many workers these are, from the ranks of a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regroup_operator.launcher import main_container

if TYPE_CHECKING:  # the spec's own validation calls these
    from regroup_operator.api import TrainingJobSpec

GPU = "nvidia.com/gpu"


def workers_per_group(spec: TrainingJobSpec) -> int:
    """Workers of a replica group; the world is a multiple of it.

    elasticPolicy.replicaGroupSize decides only where there is no parallelism to follow from. Raises ValueError when it
    says something else, or when the ranks of a group do not fill its workers.
    """
    given = spec.elastic_policy.replica_group_size if spec.elastic_policy else None
    if spec.trainer is None:
        return given or 1
    per_worker = _ranks_per_worker(spec)
    workers = workers_of_ranks(spec, per_worker)
    if given is not None and given != workers:
        layout = spec.trainer.parallelism
        raise ValueError(
            f"elasticPolicy.replicaGroupSize {given} differs from {workers}, the workers of a replica group of "
            f"{layout.replica_group_ranks} ranks ({layout.replica_group}) at {per_worker} a worker: leave it out, it "
            f"follows from these"
        )
    return workers


def workers_of_ranks(spec: TrainingJobSpec, per_worker: int) -> int:
    """Workers with so many ranks each that hold one copy of the model; 1 without a trainer. Raises ValueError."""
    if spec.trainer is None:
        return 1
    layout = spec.trainer.parallelism
    ranks = layout.replica_group_ranks
    if ranks % per_worker and per_worker % ranks:
        raise ValueError(
            f"nprocPerNode {per_worker} does not go into a replica group of {ranks} ranks ({layout.replica_group}): "
            f"make one a multiple of the other"
        )
    return -(-ranks // per_worker)


def require_whole_groups(group: int, replicas: int, min_replicas: int) -> None:
    """Raises ValueError when the workers wanted, or the fewest, leave a replica group incomplete."""
    if replicas % group or min_replicas % group:
        raise ValueError(
            f"replicas {replicas} and minReplicas {min_replicas} must be multiples of the replica group's {group} "
            f"workers (trainer.parallelism, nprocPerNode)"
        )


def _ranks_per_worker(spec: TrainingJobSpec) -> int:
    """nprocPerNode, which `auto` takes from the limit of GPUs wherever it is given; 1 where that is no number."""
    if spec.nproc_per_node != "auto":
        return max(1, spec.nproc_per_node)
    overridden = (main_container(spec.template).get("resources") or {}).get("limits") or {}
    limit = str({**(spec.resources.limits or {}), **overridden}.get(GPU, 1))
    return (int(limit) or 1) if limit.isdecimal() else 1
