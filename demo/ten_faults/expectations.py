"""The ten faults: how the job is broken, and what a user should be shown of it. A table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from demo.ten_faults import strikes
from demo.ten_faults.answer import SOMEBODY, Answer, trains
from demo.ten_faults.observation import Expected
from demo.ten_faults.scene import Scene, Struck

SLOW = frozenset({"TrainingJobGoodputLow"})
"""May follow from any fault that lasts: most of a minute (of an hour) went into no step."""


@dataclass(frozen=True)
class Fault:
    """One way to break a job."""

    name: str
    done: str
    """How it is broken, as a sentence."""
    acted: str
    """What somebody does about it, as a sentence."""
    strike: Callable[[Scene], Struck]
    expected: Expected
    job: str = strikes.SAMPLE
    """The job that it meets: the sample's, which trains, or one that it creates."""

    @property
    def slug(self) -> str:
        """The name as an argument."""
        return self.name.lower().replace(" ", "-")


PENDING = "TrainingJobPendingTooLong"
WAITS = (
    "The job waits and makes no step, however the reason is called: the text of the alert has it."
)
AFTER_SUSPENSION = "changes only while the job is suspended: kubectl trainingjob suspend"
THREE_TRAIN = trains(strikes.SAMPLE, "3 workers")
RANK_KILLED = (
    "last recovery, ... ago: application on node ...: rank {rank} on gpt-demo-w... (node ...) was "
    "ended by SIGKILL (out of memory?)"
)
RANK_HUNG = (
    "last recovery, ... ago: hang on node ...: no progress for ... s: rank {rank} on gpt-demo-w... "
    "(node ...) does not answer (is its process stopped, or its node frozen?)"
)
RANK_SLOW = (
    "event StragglerDetected, ... ago: rank {rank} on gpt-demo-w... computes ... % longer than the "
    "median rank..."
)
CLAIM_DELETED = (
    "gpt-demo does not train: ClaimMissing: "
    "spec.checkpoint.storage.persistentVolumeClaim.claimName: PersistentVolumeClaim 'shared' is "
    "being deleted: to keep the checkpoints, set persistentVolumeReclaimPolicy of its volume to "
    "Retain; then suspend the job, and create the claim again when it is gone"
)
OVERFLOWN = Answer(
    "gpt-nan has ended: TrainingFailed: rank 0 on gpt-nan-w0-1 (node ...) ended with exit code 2: "
    "NonFiniteError: steps ... to ...: the loss or its gradients are not finite in 10 steps in a "
    "row: lower the learning rate, or resume from an earlier checkpoint; exit code 2 (an error "
    "that would come again) is not worth another try",
    heals="no, it has ended",
    todo="mend what the message names, then delete the job and create it again; its checkpoints "
    "stay on the volume",
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "simulate-failure",
        "`kubectl trainingjob simulate-failure gpt-demo --rank 1 --yes` kills a rank.",
        "Nothing.",
        strikes.kill_rank,
        Expected(
            None,
            "The job trains again within seconds. Three failures in half an hour would be an "
            "alert.",
            Answer(THREE_TRAIN, evidence=(RANK_KILLED,)),
            afterwards=Answer(THREE_TRAIN, evidence=(RANK_KILLED,)),
            heals=True,
        ),
    ),
    Fault(
        "node kill",
        "The node of a worker loses its power.",
        "The node is started again.",
        strikes.cut_power,
        Expected(
            None,
            "The job trains on with two of its three workers, as its elasticPolicy allows.",
            Answer(
                "gpt-demo trains, but: WorkersMissing: 2 of 3 workers take part; node {node} does "
                "not respond (bring it back, or add another one)...",
                heals=SOMEBODY,
                todo="bring node {node} back (kubectl describe node {node}), or add another one: "
                "the worker takes part as soon as it has a node",
            ),
            afterwards=Answer(
                THREE_TRAIN,
                evidence=(
                    "last recovery, ... ago: resize: gpt-demo-w... joins",
                    "event ...Lost, ... ago: ...gpt-demo-w... on ...{node} ... lost...",
                ),
            ),
            heals=False,
            also=SLOW,
        ),
    ),
    Fault(
        "full volume",
        "A file takes all space that the volume has left.",
        "That file is deleted.",
        strikes.fill_volume,
        Expected(
            "TrainingJobVolumeUnavailable",
            "Training goes on, but without checkpoints: it may lose hours, so somebody is woken.",
            Answer(
                "gpt-demo trains, but: VolumeUnavailable: /regroup/volume/team/gpt-demo-...: No "
                "space left on device (since ...). ... steps of the history wait in memory; of "
                "more than ... the oldest are left out. Checkpoints may fail too.",
                heals=SOMEBODY,
                todo="free space, or repair the volume; delete no pod: states wait in memory",
            ),
            afterwards=Answer(THREE_TRAIN, evidence=("event VolumeUnavailable, ...",)),
            heals=False,
            follow={"TrainingJobCheckpointFailing": "no save succeeds on a full volume"},
            also=SLOW | {"TrainingJobCheckpointStale"},
        ),
    ),
    Fault(
        "wrong image",
        "A job is created with an image that does not exist.",
        "The job is suspended, `spec.image` is corrected, and the job is resumed.",
        strikes.wrong_image,
        Expected(
            PENDING,
            WAITS,
            Answer(
                f"gpt-image does not train: ImageError: cannot pull image {strikes.WRONG_IMAGE} of "
                "pod gpt-image-w0-... on node ...: ... connection refused (check spec.image or "
                "spec.template)",
                heals=SOMEBODY,
                todo="correct the image's pull secret, the node's way to the registry, or its "
                f"name: spec.image {AFTER_SUSPENSION} gpt-image",
            ),
            afterwards=Answer(trains("gpt-image", "1 worker")),
            heals=False,
            also=SLOW,
        ),
        job="gpt-image",
    ),
    Fault(
        "too large a request",
        "A job is created whose workers ask for 64 CPUs each. No node has so many.",
        "The job is suspended, `spec.resources` are lowered, and the job is resumed.",
        strikes.large_request,
        Expected(
            PENDING,
            WAITS,
            Answer(
                "gpt-size does not train: Unschedulable: pod gpt-size-w0-... cannot be scheduled: "
                "0/3 nodes are available: ... Insufficient cpu...",
                heals=SOMEBODY,
                todo="free or add nodes, or ask for less: spec.resources "
                f"{AFTER_SUSPENSION} gpt-size",
            ),
            afterwards=Answer(trains("gpt-size", "1 worker")),
            heals=False,
            also=SLOW,
        ),
        job="gpt-size",
    ),
    Fault(
        "a rank that hangs",
        f"SIGSTOP stops the process of rank {strikes.RANK}. The progressTimeoutSeconds of the job "
        f"are {strikes.HANG_SECONDS}.",
        "Nothing.",
        strikes.stop_rank,
        Expected(
            "TrainingJobRankUnresponsive",
            "All GPUs wait for one rank, for longer than a step or a save should take.",
            Answer(
                "gpt-demo trains, but: NoProgress: no step since ..., after step ...: a rank "
                "hangs, or a save, an evaluation or data take so long; all ranks begin anew after "
                f"{strikes.HANG_SECONDS} s without one",
                heals="often, but only once all ranks begin anew; somebody has to act when it "
                "comes again",
                todo="kubectl trainingjob debug gpt-demo shows what each rank does; "
                "spec.failureDetection.progressTimeoutSeconds says when all ranks begin anew by "
                "themselves",
            ),
            afterwards=Answer(THREE_TRAIN, evidence=(RANK_HUNG,)),
            heals=True,
            follow={
                "TrainingJobStalled": "the step stays the same until the ranks begin anew",
                "TrainingJobCheckpointStale": "nothing is saved until then, twice as long as the "
                "alert allows",
            },
            also=SLOW,
            patience_seconds=90,
        ),
    ),
    Fault(
        "a straggler",
        f"The process of rank {strikes.RANK} is stopped three quarters of the time.",
        "It runs as before.",
        strikes.slow_rank,
        Expected(
            "TrainingJobStraggler",
            "All other GPUs wait in each step, and by default nothing is done about it.",
            Answer(
                "gpt-demo trains, but: Stragglers: all wait for the slowest: rank {rank} on ... "
                "computes ... % longer than the median rank",
                heals=SOMEBODY,
                todo="check that rank's GPU and node; to move the rank, cordon the node and delete "
                "its pod: no step is lost",
            ),
            afterwards=Answer(THREE_TRAIN, evidence=(RANK_SLOW,)),
            heals=False,
            also=SLOW,
        ),
    ),
    Fault(
        "NaN",
        "A job is created with a learning rate and a weight decay of 10: its weights overflow.",
        "Nothing: the job has failed, and its spec has to change.",
        strikes.overflow,
        Expected(
            "TrainingJobLossNaN",
            "Its owner has to act. No restart is tried, since it would come to the same step.",
            OVERFLOWN,
            afterwards=OVERFLOWN,
            heals=False,
            ends=True,
            follow={"TrainingJobFailed": "the job ends with ten such steps in a row"},
        ),
        job="gpt-nan",
    ),
    Fault(
        "quota",
        "A quota allows no more pods in the namespace. Then a job is created.",
        "The quota is raised.",
        strikes.quota_used_up,
        Expected(
            PENDING,
            WAITS,
            Answer(
                "gpt-quota does not train: QuotaExceeded: a quota of the namespace refuses an "
                'object: pods "gpt-quota-..." is forbidden: exceeded quota: '
                f"{strikes.QUOTA}, requested: pods=1, used: pods=..., limited: pods=... (raise the "
                "quota, free what uses it, or ask for less)",
                heals=SOMEBODY,
                todo="raise the quota, delete what uses it, or ask for less: spec.resources "
                f"{AFTER_SUSPENSION} gpt-quota",
                evidence=(f"quota {strikes.QUOTA}: used up: pods ... of ...",),
            ),
            afterwards=Answer(trains("gpt-quota", "1 worker")),
            heals=False,
            also=SLOW,
        ),
        job="gpt-quota",
    ),
    Fault(
        "deleted claim",
        "The claim with the checkpoints is deleted while the job trains. Then the pods of two "
        "workers are lost.",
        "The job is suspended, the claim is made again for the same volume, and the job is "
        "resumed.",
        strikes.delete_claim,
        Expected(
            PENDING,
            WAITS,
            Answer(
                CLAIM_DELETED,
                heals=SOMEBODY,
                todo="create the PersistentVolumeClaim that the message names. One that is being "
                "deleted goes with the last pod that uses it, and its volume with it unless the "
                "volume's persistentVolumeReclaimPolicy is Retain: set that first, then kubectl "
                "trainingjob suspend gpt-demo, create the claim again, and resume",
            ),
            afterwards=Answer(THREE_TRAIN),
            heals=False,
            follow={
                "TrainingJobBelowMinWorkers": "two of three workers are gone and the claim lets no "
                "pod come"
            },
            also=SLOW | {"TrainingJobCheckpointStale"},
        ),
    ),
)
BY_NAME: Mapping[str, Fault] = {fault.slug: fault for fault in FAULTS}
