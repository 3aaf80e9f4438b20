"""What can be done to a job: one function for each kind of fault, with proof that it struck.

A fault that finds no victim, or whose proof fails, raises Missed: it does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from soak import control_faults, machine_faults, node_faults, pod_faults, volume_faults
from soak.aim import Aim, Struck
from soak.draw import Fault


def strike(aim: Aim, fault: Fault) -> Struck:
    """Do it. Raises Missed."""
    return STRIKES[fault.kind](aim)


STRIKES: Mapping[str, Callable[[Aim], Struck]] = {
    "pod-deleted": pod_faults.pod_deleted,
    "pod-force-deleted": lambda aim: pod_faults.pod_deleted(aim, grace=0),
    "rank-killed": pod_faults.rank_killed,
    "agent-killed": pod_faults.agent_killed,
    "coordinator-killed": pod_faults.coordinator_killed,
    "two-within-200-ms": pod_faults.two_within_200_ms,
    "whole-job-killed": pod_faults.whole_job_killed,
    "node-power-cut": node_faults.node_power_cut,
    "all-nodes-power-cut": node_faults.all_nodes_power_cut,
    "node-frozen": node_faults.node_frozen,
    "node-partitioned": node_faults.node_partitioned,
    "node-drained": node_faults.node_drained,
    "coordinator-drained": node_faults.coordinator_drained,
    "overload": machine_faults.overload,
    "api-server-away": control_faults.api_server_away,
    "etcd-away": lambda aim: control_faults.component_away(aim, "etcd"),
    "scheduler-away": lambda aim: control_faults.component_away(aim, "kube-scheduler"),
    "controller-manager-away": lambda aim: control_faults.component_away(
        aim, "kube-controller-manager"
    ),
    "operator-killed": pod_faults.operator_killed,
    "volume-full": volume_faults.volume_full,
    "volume-silent": volume_faults.volume_silent,
    "volume-away": volume_faults.volume_silent,
    "volume-errors": volume_faults.volume_errors,
    "volume-slow": volume_faults.volume_slow,
    "secret-deleted": lambda aim: control_faults.object_deleted(aim, "secret"),
    "service-deleted": lambda aim: control_faults.object_deleted(aim, "service"),
    "policy-deleted": lambda aim: control_faults.object_deleted(aim, "networkpolicy"),
    "rank-out-of-memory": pod_faults.rank_out_of_memory,
    "kubelet-restarted": lambda aim: node_faults.restarted(aim, "kubelet"),
    "containerd-restarted": lambda aim: node_faults.restarted(aim, "containerd"),
    "volume-read-only": volume_faults.volume_read_only,
    "sidecar-killed": pod_faults.sidecar_killed,
    "ephemeral-storage-full": pod_faults.ephemeral_storage_full,
    "clock-wrong": pod_faults.clock_wrong,
    "image-missing": node_faults.image_missing,
    "certificates-rotated": node_faults.certificates_rotated,
}
