"""The alerts that none of the ten faults fires: their causes, and what is awaited. A table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from demo.caused_alerts import alert_strikes
from demo.caused_alerts.jobs import BUG, LOOP
from demo.caused_alerts.sighting import Awaited
from demo.installation import ROOT, SYSTEM
from demo.ten_faults.course import wait_whole
from demo.ten_faults.scene import NAMESPACE, Scene, Struck
from demo.waiting import wait_for

ALERTS = ROOT / "charts/regroup/alerts/regroup.yaml"
HISTORY_SECONDS = 90
"""The shortened window of TrainingJobLossSpike reaches back so far."""
HISTORY_DEADLINE_SECONDS = 300.0
Json = dict[str, Any]


@cache
def rules() -> Mapping[str, Json]:
    """The rules of the chart that need Regroup's own series only, by the names of their alerts."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def loop_trains(scene: Scene) -> None:
    """Wait until the loop trains as it should."""
    wait_whole(scene, LOOP)


def loop_has_history(scene: Scene) -> None:
    """Wait until Prometheus knows the loss of the loop for as long as the rule looks back."""
    loop_trains(scene)
    query = f'trainingjob_loss{{trainingjob="{LOOP}"}} offset {HISTORY_SECONDS}s'
    wait_for(
        f"a history of {HISTORY_SECONDS} s",
        lambda: scene.server.instant(query, time.time()),
        HISTORY_DEADLINE_SECONDS,
        every=1,
    )


def operator_has_bug(scene: Scene) -> None:
    """The operator runs with its bug, and leads."""
    alert_strikes.give_bug(scene)


@dataclass(frozen=True)
class Cause:
    """One way to cause an alert."""

    alert: str
    done: str
    """How it is caused, in sentences."""
    acted: str
    """What somebody does about it, as a sentence."""
    strike: Callable[[Scene], Struck]
    words: tuple[str, ...]
    """What `why` says of the job meanwhile."""
    job: str = LOOP
    """The job that `why` is asked about."""
    about: Mapping[str, str] = field(
        default_factory=lambda: {"namespace": NAMESPACE, "trainingjob": LOOP}
    )
    """The labels that say what the alert is about."""
    prepare: Callable[[Scene], None] = loop_trains
    """What has to be before."""
    passes: bool = False
    """Whether the alert may end while its cause lasts."""
    created: tuple[str, ...] = ()
    """Jobs that it creates, which are deleted afterwards."""

    @property
    def slug(self) -> str:
        """The name as an argument."""
        return self.alert.removeprefix("TrainingJob").lower()

    @property
    def awaited(self) -> Awaited:
        """How the alert should arrive."""
        rule = rules()[self.alert]
        labels = {"alertname": self.alert, **rule["labels"], **self.about}
        return Awaited(labels, rule["annotations"]["runbook_url"], self.words, self.passes)


OF_OPERATOR = {"namespace": SYSTEM}

CAUSES: tuple[Cause, ...] = (
    Cause(
        "TrainingJobObjectConflict",
        "A Service has the name `gpt-conflict-coordinator`. Then the job `gpt-conflict` is "
        "created.",
        "The Service is deleted.",
        alert_strikes.take_name,
        words=("ObjectConflict", "Service", "gpt-conflict-coordinator", "Heals: no"),
        job=alert_strikes.CONFLICTING,
        about={"namespace": NAMESPACE, "trainingjob": alert_strikes.CONFLICTING},
        created=(alert_strikes.CONFLICTING,),
    ),
    Cause(
        "TrainingJobLossSpike",
        "The targets of all samples are wrong by 10 from now on. (The rule compares with the time "
        "before: it holds for about 33 minutes, also of a loss that stays.)",
        "The targets are right again.",
        alert_strikes.program_fails("wrong targets"),
        words=("loop trains", "loss"),
        prepare=loop_has_history,
        passes=True,
    ),
    Cause(
        "TrainingJobMemoryNearLimit",
        "The program takes memory until 40 MiB of its container's limit are left, and keeps it.",
        "It gives the memory back.",
        alert_strikes.program_fails("memory leak"),
        words=("loop trains",),
    ),
    Cause(
        "TrainingJobGoodputLow",
        "The storage of the samples takes 0.1 s for each. A batch has eight, and a step takes "
        "0.1 s.",
        "The storage is fast again.",
        alert_strikes.program_fails("slow storage"),
        words=("loop trains",),
    ),
    Cause(
        "TrainingJobCoordinatorUnreachable",
        "The network drops all that the coordinator's pod sends to the operator and to "
        "Prometheus. Its workers and its kubelet reach it.",
        "The network passes it on again.",
        alert_strikes.cut_off_coordinator,
        words=("coordinator", "does not answer the operator", "It still answers its workers"),
    ),
    Cause(
        "TrainingJobOperatorDown",
        "`kubectl scale` takes all replicas of the operator away.",
        "They are given back.",
        alert_strikes.stop_operator,
        words=("OperatorAway", "nobody holds the operator's Lease", "start the operator again"),
        about={},
    ),
    Cause(
        "TrainingJobReconcileErrors",
        "The rule about `trainingjobs/status` is taken from the operator's ClusterRole. Then ten "
        "jobs are created that are suspended. (Pauses between failed rounds grow up to a minute "
        "and are not shortened; with the rules as they are, one job suffices.)",
        "The rule is put back.",
        alert_strikes.take_right,
        words=("idle-0 does not train",),
        job=alert_strikes.IDLE[0],
        about=OF_OPERATOR,
        created=alert_strikes.IDLE,
    ),
    Cause(
        "TrainingJobInternalError",
        "The operator is given a bug, since it is not known to have one: a `sitecustomize` of its "
        "pods makes the function fail that renders the coordinator of the job `gpt-bug`. Then "
        "that job is created. (Pauses between its tries grow up to a minute and are not shortened: "
        "the shortened alert may end in between.)",
        "The operator is rolled back.",
        alert_strikes.meet_bug,
        words=("InternalError", "ZeroDivisionError", "operator's log"),
        job=BUG,
        about=OF_OPERATOR,
        prepare=operator_has_bug,
        passes=True,
        created=(BUG,),
    ),
    Cause(
        "TrainingJobCrashLooping",
        "The program meets a corrupt shard of its data: each time, it ends with a RuntimeError.",
        "The shard is repaired.",
        alert_strikes.program_fails("corrupt shard"),
        words=("RepeatedFailures", "shard 7 of the data set is corrupt", "Heals: no"),
    ),
)
BY_NAME: Mapping[str, Cause] = {cause.slug: cause for cause in CAUSES}
