"""How large a job may be. Pure.

The API server takes any number of spares up to 2,147,483,647. Each worker costs the operator memory
and a place in lists, so that one such job would end it for all. The limit is one value of the
installation; `Settings.max_workers` says why it has an upper end. Workers and their ranks together
are bounded by it too: each rank costs the coordinator, and what reads its answers.

A job that has started may have been admitted by a release without this limit, or before the limit
was lowered. Its `maxReplicas` does not count, and may be raised to any number: who reckons with it
cuts it to the limit first. `replicas` + `spares` count at any time. A job with more runs on with
the pods that it has, but a lost one is not replaced (`InvalidJob`).
"""

from __future__ import annotations

from regroup_operator.api.replica_groups import ranks_of_worker
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.torchrun_flags import MOST_RANKS

DEFAULT_MAX_WORKERS = 4096
"""Workers of one job, spares included."""
RANKS_EACH = 16
"""Ranks of a job for each worker that the installation allows: as many as any node has GPUs. A
single worker may have MOST_RANKS on CPUs at any rate.
"""


def too_large(spec: TrainingJobSpec, max_workers: int, *, started: bool = False) -> str:
    """Why a job is larger than this installation allows; empty when it is not. `started`: whether
    it runs already.
    """
    most = (spec.replicas if started else spec.max_replicas) + spec.spares
    if most > max_workers:
        return (
            f"spec.replicas {spec.replicas}, spec.elasticPolicy.maxReplicas {spec.max_replicas} "
            f"and spec.spares {spec.spares} make up to {most} workers, and this installation "
            f"allows {max_workers} a job: ask for fewer (an administrator sets the limit with "
            "maxWorkersPerJob of the chart)"
        )
    ranks = ranks_of_worker(spec)
    if ranks > MOST_RANKS:
        return (
            f"spec.nprocPerNode {spec.nproc_per_node} makes {ranks} ranks a worker by the limit of "
            f"its GPUs: at most {MOST_RANKS} are possible: set spec.nprocPerNode"
        )
    allowed = max(max_workers * RANKS_EACH, MOST_RANKS)
    if most * ranks > allowed:
        return (
            f"spec.nprocPerNode {spec.nproc_per_node} makes {ranks} ranks in each of up to {most} "
            f"workers, {most * ranks} in all, and this installation allows {allowed} a job: ask "
            f"for fewer ({RANKS_EACH} for each worker that maxWorkersPerJob of the chart allows, "
            f"or {MOST_RANKS})"
        )
    return ""


def most_to_report(asked: int, pods: int, max_workers: int) -> int:
    """How many workers a coordinator may report about. `asked`: what the spec allows, also of those
    that are lost and have no pod. A job from before the limit was lowered may have more `pods`.
    """
    return min(max(min(asked, max_workers), pods), DEFAULT_MAX_WORKERS)
