"""The ten faults: how the job is broken, and what a user should be shown of it. A table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from demo.ten_faults import strikes
from demo.ten_faults.observation import Expected, Words
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
            words=Words(("gpt-demo trains",), ("rank {rank}", "SIGKILL")),
            afterwards=Words(("gpt-demo trains",), ("last recovery", "rank {rank}")),
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
            words=Words(
                ("gpt-demo trains, but", "2 of 3 workers", "{node}"), ("bring node {node} back",)
            ),
            afterwards=Words(("gpt-demo trains",), ("3/3 workers", "{node}")),
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
            words=Words(("gpt-demo trains, but", "volume", "No space left"), ("free space",)),
            afterwards=Words(("gpt-demo trains",)),
            heals=False,
            also=SLOW | {"TrainingJobCheckpointFailing", "TrainingJobCheckpointStale"},
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
            words=Words(
                ("ImageError", strikes.WRONG_IMAGE), ("Heals: no", "spec.image", "suspend")
            ),
            afterwards=Words(("trains",)),
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
            words=Words(
                ("Unschedulable", "Insufficient cpu"), ("Heals: no", "ask for less", "suspend")
            ),
            afterwards=Words(("trains",)),
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
            words=Words(
                ("gpt-demo trains, but: NoProgress", "no step since"),
                ("trainingjob debug", "Heals: "),
            ),
            afterwards=Words(("gpt-demo trains",), ("hang", "no progress", "rank {rank}")),
            heals=True,
            also=SLOW | {"TrainingJobStalled", "TrainingJobCheckpointStale"},
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
            words=Words(
                ("gpt-demo trains, but", "rank {rank}", "longer than the median"), ("cordon",)
            ),
            afterwards=Words(("gpt-demo trains",)),
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
            words=Words(("has ended", "not finite")),
            afterwards=Words(("has ended", "not finite", "in a row")),
            heals=False,
            ends=True,
            also=frozenset({"TrainingJobFailed"}),
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
            words=Words(
                ("QuotaExceeded", "exceeded quota", strikes.QUOTA, "pods"), ("raise the quota",)
            ),
            afterwards=Words(("trains",)),
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
            words=Words(("ClaimMissing", "shared"), ("Heals: no", "Retain", "suspend gpt-demo")),
            afterwards=Words(("gpt-demo trains",), ("3/3 workers",)),
            heals=False,
            also=SLOW | {"TrainingJobBelowMinWorkers", "TrainingJobCheckpointStale"},
        ),
    ),
)
BY_NAME: Mapping[str, Fault] = {fault.slug: fault for fault in FAULTS}
