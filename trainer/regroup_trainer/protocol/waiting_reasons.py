"""The reasons why a job waits: one vocabulary for the operator and the coordinators.

Where several hold, `decide/waiting.py` of the operator and `coordinator/waiting.py` say which one
is given: each has a table of its own, in its own order.

docs/concepts/waiting.md says what to do about each.
"""

from __future__ import annotations

from enum import Enum, unique


@unique
class WaitingReason(Enum):
    """The name is the word that the condition Ready, the metric trainingjob_waiting and the events
    show. The value says what it means.
    """

    InvalidSpec = "a field of the spec has a value that is not allowed"
    NotSupported = "the spec uses a field that is documented but not built yet"
    ClaimMissing = "the claim for the checkpoints does not exist, or is being deleted"
    ClaimNotShared = "several workers need the claim, and it is not ReadWriteMany"
    ObjectConflict = (
        "an object that is not the job's has the name of one of the job's own, or one that may be "
        "the job's cannot be read"
    )
    KeyMissing = "the operator no longer has the key with which the job was started"
    ApiError = "the API server refused a request of the operator"
    QuotaExceeded = "a quota of the namespace refuses an object of the job"
    InternalError = "the operator met an error that it does not know while it looked at the job"
    ImageError = "the image of a pod cannot be pulled"
    CreateContainerConfigError = (
        "a container cannot be made, since a Secret or ConfigMap that it names is missing, or "
        "lacks the key"
    )
    CreateContainerError = (
        "the node's container runtime cannot make or start a container, and tries again"
    )
    CoordinatorCrashing = "the coordinator's container fails each time that it is started"
    SidecarCrashing = "a container beside the main one fails each time that it is started"
    FailedMount = "a volume of a pod cannot be mounted"
    ContainerCreating = "a pod has a node, and its containers are not created for half a minute"
    WorkerUnresponsive = (
        "a worker runs, and the coordinator has received nothing from it for ten seconds"
    )
    Suspended = "the job is suspended and holds no pods"
    Suspending = "the ranks save their state, then the pods are given back"
    Unschedulable = "the scheduler finds no node for a pod"
    BackOff = "failure follows failure without a step in between, so that the next try waits"
    CoordinatorUnreachable = (
        "the coordinator does not answer the operator, or its answer cannot be taken"
    )
    CoordinatorPending = "the coordinator's pod does not run, or has not answered yet"
    StorePending = "the pod of torchrun's store does not run yet"
    GenerationFailed = "a generation has failed, and its ranks are being stopped"
    GenerationEnding = "the ranks end a generation together, after a step that they agree on"
    GenerationStarting = "the ranks of a generation load their state or compute the first step"
    VolumeUnavailable = (
        "the volume, or that of the training data, is full, read-only or unresponsive, or gives "
        "errors, so that no generation can begin, or one that is to end cannot save"
    )
    CutOffGeneration = "workers train on with a former coordinator, cut off from the others"
    FormerWorkersAwaited = "a new coordinator gives the workers time to connect to it"
    NoWorkersYet = "no worker has connected to the coordinator yet"
    TooFewWorkers = "fewer workers are here than the smallest generation needs"
    WorkerSuspect = "the heartbeats of a worker are late, so that it may be lost"
    RanksLeaving = "ranks have not left a failed generation yet"
    GatheringWorkers = "there are enough workers, and more of them may come at any moment"
    ReservingNumber = "the volume has not confirmed the number of the next generation yet"
