"""Replica groups: the workers that must all be there for one copy of the model. Pure.

How many ranks hold a copy follows from `trainer.parallelism`; how many workers these are, from the ranks of a worker.
"""

from __future__ import annotations

from regroup_trainer.config import ParallelismConfig


def workers_per_group(parallelism: ParallelismConfig | None, given: int | None, ranks_per_worker: int) -> int:
    """Workers of a replica group; the world is a multiple of it.

    `given` is elasticPolicy.replicaGroupSize, which decides only where there is no `parallelism` to follow from. Raises
    ValueError when it says something else, or when the ranks of a group do not fill its workers.
    """
    if parallelism is None:
        return given or 1
    ranks = parallelism.replica_group_ranks
    if ranks % ranks_per_worker and ranks_per_worker % ranks:
        raise ValueError(
            f"nprocPerNode {ranks_per_worker} does not go into a replica group of {ranks} ranks "
            f"({parallelism.replica_group}): make one a multiple of the other"
        )
    workers = -(-ranks // ranks_per_worker)
    if given is not None and given != workers:
        raise ValueError(
            f"elasticPolicy.replicaGroupSize {given} differs from {workers}, the workers of a replica group of {ranks} "
            f"ranks ({parallelism.replica_group}) at {ranks_per_worker} a worker: leave it out, it follows from these"
        )
    return workers


def require_whole_groups(group: int, replicas: int, min_replicas: int) -> None:
    """Raises ValueError when the workers wanted, or the fewest, leave a replica group incomplete."""
    if replicas % group or min_replicas % group:
        raise ValueError(
            f"replicas {replicas} and minReplicas {min_replicas} must be multiples of the replica group's {group} "
            f"workers (trainer.parallelism, nprocPerNode)"
        )
