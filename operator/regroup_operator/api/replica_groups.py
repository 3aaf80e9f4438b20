"""Replica groups: the workers that together hold one copy of the model. Pure.

`trainer.parallelism` decides how many ranks hold a copy; the ranks of a worker decide how many
workers these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regroup_operator.api.user_script import main_container
from regroup_trainer.protocol.message import quote

if TYPE_CHECKING:  # the spec's own validation calls these
    from regroup_operator.api.spec import TrainingJobSpec

GPU = "nvidia.com/gpu"


def workers_per_group(spec: TrainingJobSpec) -> int:
    """Workers of a replica group. Each generation has a multiple of it.

    elasticPolicy.replicaGroupSize decides only for jobs without `trainer`. Raises ValueError when
    it contradicts `trainer.parallelism`, or when the ranks of a group do not fill its workers.
    """
    given = spec.elastic_policy.replica_group_size if spec.elastic_policy else None
    if spec.trainer is None:
        return given or 1
    per_worker = ranks_of_worker(spec)
    workers = workers_of_ranks(spec, per_worker)
    if given is not None and given != workers:
        layout = spec.trainer.parallelism
        raise ValueError(
            f"elasticPolicy.replicaGroupSize {given} differs from {workers}, the workers of a "
            "replica group of "
            f"{layout.replica_group_ranks} ranks ({layout.replica_group}) at {per_worker} a "
            "worker: leave it out, it "
            f"follows from these"
        )
    return workers


def workers_of_ranks(spec: TrainingJobSpec, per_worker: int) -> int:
    """Workers, of `per_worker` ranks each, that hold one copy of the model; 1 without `trainer`.
    Raises ValueError when the ranks of a group do not fill its workers.
    """
    if spec.trainer is None:
        return 1
    layout = spec.trainer.parallelism
    ranks = layout.replica_group_ranks
    if ranks % per_worker and per_worker % ranks:
        raise ValueError(
            f"nprocPerNode {per_worker} does not go into a replica group of {ranks} ranks "
            f"({layout.replica_group}): "
            f"make one a multiple of the other"
        )
    return -(-ranks // per_worker)


def require_whole_groups(group: int, replicas: int, min_replicas: int) -> None:
    """Raises ValueError when the workers wanted, or the fewest, leave a replica group
    incomplete.
    """
    if replicas % group or min_replicas % group:
        raise ValueError(
            f"replicas {replicas} and minReplicas {min_replicas} must be multiples of the replica "
            f"group's {group} "
            f"workers (trainer.parallelism, nprocPerNode)"
        )


def ranks_of_worker(spec: TrainingJobSpec) -> int:
    """nprocPerNode. `auto` takes it from the limit of GPUs, in `resources` or in the template; 1
    where that is not a number.
    """
    if spec.nproc_per_node != "auto":
        return max(1, spec.nproc_per_node)
    overridden = (main_container(spec.template).get("resources") or {}).get("limits") or {}
    given = {**(spec.resources.limits or {}), **overridden}.get(GPU, 1)
    limit = given if isinstance(given, str) else quote(given)
    return (int(limit) or 1) if limit.isdecimal() and len(limit) < 10 else 1
