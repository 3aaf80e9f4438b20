"""What to do about each reason for which a job waits, in a sentence. Pure.

docs/concepts/waiting.md says more, and has the reasons under headings that say how they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from regroup_trainer.protocol.waiting_reasons import WaitingReason as Reason

Heals = Literal["no", "seldom", "restart", "maybe", "yes"]
HEALS: dict[Heals, str] = {
    "no": "no, somebody has to act",
    "seldom": "seldom; it is tried again, and mostly fails as before until somebody acts",
    "restart": "often, but only once all ranks begin anew; somebody has to act when it comes again",
    "maybe": "often within a minute; look closer when it lasts longer",
    "yes": "yes, by itself within seconds, or in the time that a save takes",
}
WORKERS_MISSING = "WorkersMissing"
"""The reason of a job that trains with fewer workers than are wanted."""
REPEATED_FAILURES = "RepeatedFailures"
"""The reason of a job whose program fails again and again, whether it trains at the moment or not.
"""

_SUSPENDED = " changes only while the job is suspended: kubectl trainingjob suspend NAME"


class Advice(NamedTuple):
    """What follows from a reason."""

    heals: Heals
    """Whether the job trains on without anybody."""
    what_to_do: str
    """NAME stands for the job."""


WHILE_WAITING: dict[Reason, Advice] = {
    Reason.InvalidSpec: Advice("no", "correct the field that the message names"),
    Reason.NotSupported: Advice("no", "remove the field that the message names"),
    Reason.ClaimMissing: Advice(
        "no",
        "create the PersistentVolumeClaim that the message names. One that is being deleted goes "
        "with the last pod that uses it, and its volume with it unless the volume's "
        "persistentVolumeReclaimPolicy is Retain: set that first, then kubectl trainingjob "
        "suspend NAME, create the claim again, and resume",
    ),
    Reason.ClaimNotShared: Advice("no", "name a claim with access mode ReadWriteMany"),
    Reason.ObjectConflict: Advice(
        "no", "rename or delete the object that the message names, or rename the job"
    ),
    Reason.KeyMissing: Advice("no", "put the operator's key back (docs/tasks/rotate-key.md)"),
    Reason.ApiError: Advice(
        "no", "read the API server's answer in the message; often it is an admission webhook"
    ),
    Reason.QuotaExceeded: Advice(
        "no", f"raise the quota, delete what uses it, or ask for less: spec.resources{_SUSPENDED}"
    ),
    Reason.InternalError: Advice(
        "seldom", "read the operator's log, and report the error; pods that run go on"
    ),
    Reason.ImageError: Advice(
        "no",
        "correct the image's pull secret, the node's way to the registry, or its name: "
        f"spec.image{_SUSPENDED}",
    ),
    Reason.CreateContainerConfigError: Advice(
        "no",
        "make the Secret or ConfigMap that is missing, or correct its name: "
        f"spec.template{_SUSPENDED}",
    ),
    Reason.CreateContainerError: Advice(
        "no",
        "correct command, image or mounts, or repair the node's runtime or device: "
        f"spec.template{_SUSPENDED}",
    ),
    Reason.CoordinatorCrashing: Advice(
        "no", "read the coordinator's log: kubectl logs POD --previous"
    ),
    Reason.SidecarCrashing: Advice(
        "no",
        "read that container's log: kubectl logs POD -c NAME --previous; correct its command, "
        f"image or mounts: spec.template{_SUSPENDED}",
    ),
    Reason.FailedMount: Advice("no", "make or repair the claim, Secret or server of the volume"),
    Reason.ContainerCreating: Advice(
        "maybe", "look at the pod's events: an image is still being pulled, or a mount is missing"
    ),
    Reason.WorkerUnresponsive: Advice(
        "maybe", "read the worker's log; the operator replaces it 30 s after its last sign of life"
    ),
    Reason.Suspended: Advice("no", "to train on: kubectl trainingjob resume NAME"),
    Reason.Unschedulable: Advice(
        "no", f"free or add nodes, or ask for less: spec.resources{_SUSPENDED}"
    ),
    Reason.VolumeUnavailable: Advice(
        "no", "free space, or repair the volume; delete no pod: states wait in memory"
    ),
    Reason.CoordinatorPending: Advice("maybe", "look at the coordinator's pod: kubectl describe"),
    Reason.CoordinatorUnreachable: Advice(
        "maybe",
        "where the message names a protocol: kubectl trainingjob suspend NAME, then resume it. "
        "Otherwise read the coordinator's log, and check network policies between it and the "
        "operator. Deleting its pod is safe: a successor takes over",
    ),
    Reason.StorePending: Advice("maybe", "look at the store's pod: kubectl describe"),
    Reason.NoWorkersYet: Advice(
        "maybe", "look at the workers: kubectl get pods -l regroup.dev/job=NAME"
    ),
    Reason.TooFewWorkers: Advice(
        "maybe", "look at the workers: kubectl get pods -l regroup.dev/job=NAME"
    ),
    Reason.BackOff: Advice(
        "seldom",
        "read the logs of the pods that failed: kubectl trainingjob logs NAME --failed; to try "
        "again at once, suspend and resume the job",
    ),
    Reason.GenerationStarting: Advice(
        "maybe", "read the workers' logs; a large state takes minutes to load"
    ),
    Reason.ReservingNumber: Advice(
        "maybe", "check that the volume responds on the coordinator's node"
    ),
    Reason.Suspending: Advice("yes", "nothing: the ranks save, then the pods are given back"),
    Reason.GenerationFailed: Advice("yes", "nothing: the next generation follows"),
    Reason.GenerationEnding: Advice("yes", "nothing: the next generation follows"),
    Reason.CutOffGeneration: Advice("yes", "check the network between the nodes if it lasts"),
    Reason.FormerWorkersAwaited: Advice("yes", "nothing: missing workers count as lost soon"),
    Reason.WorkerSuspect: Advice("yes", "nothing: the worker answers soon, or is replaced"),
    Reason.RanksLeaving: Advice("yes", "nothing: agents kill the ranks that are late"),
    Reason.GatheringWorkers: Advice("yes", "nothing: the job trains in a few seconds"),
}
"""Why a job does not train."""
WHILE_TRAINING: dict[str, Advice] = {
    WORKERS_MISSING: Advice(
        "maybe",
        "look at the pods that do not run: kubectl get pods -l regroup.dev/job=NAME; each takes "
        "part as soon as it does",
    ),
    REPEATED_FAILURES: Advice(
        "no",
        "mend what the last failure names; kubectl trainingjob logs NAME --failed has more. If all "
        "were on one node (kubectl trainingjob timeline NAME -o wide), cordon it. To keep the "
        "restarts that are left: kubectl trainingjob suspend NAME",
    ),
    "Stragglers": Advice(
        "no",
        "check that rank's GPU and node; to move the rank, cordon the node and delete its pod: no "
        "step is lost",
    ),
    "SaveFailed": Advice(
        "seldom", "free the space, or correct the rights, that the message names; each save is new"
    ),
    "NoProgress": Advice(
        "restart",
        "kubectl trainingjob debug NAME shows what each rank does; "
        "spec.failureDetection.progressTimeoutSeconds says when all ranks begin anew by themselves",
    ),
}
"""What is wrong with a job that trains."""
_ELSE = Advice("maybe", "read the message, and the events of the job and its pods")


def advice(reason: str, job: str, lost_nodes: Sequence[str] = ()) -> Advice:
    """What follows from a reason; a general advice for one of another release. A pod without a node
    waits for those that its job has lost.
    """
    if reason == Reason.Unschedulable.name and lost_nodes:
        return Advice("no", _bring_back(lost_nodes))
    known = Reason.__members__.get(reason)
    found = WHILE_WAITING[known] if known is not None else WHILE_TRAINING.get(reason, _ELSE)
    heals, what_to_do = found
    return Advice(heals, what_to_do.replace("NAME", job))


def _bring_back(nodes: Sequence[str]) -> str:
    them = f"node {nodes[0]}" if len(nodes) == 1 else "one of the nodes that do not respond"
    look = f"kubectl describe node {nodes[0]}"
    takes_part = "the worker takes part as soon as it has a node"
    return f"bring {them} back ({look}), or add another one: {takes_part}"
