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
from demo.ten_faults.answer import SOMEBODY, Answer, trains
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
    answer: Answer
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
        return Awaited(labels, rule["annotations"]["runbook_url"], self.answer, self.passes)


LOOP_TRAINS = trains(LOOP, "1 worker")
"""All that `why` says while a job goes on: what the alert saw is in the alert's own text."""
OF_OPERATOR = {"namespace": SYSTEM}

CAUSES: tuple[Cause, ...] = (
    Cause(
        "TrainingJobObjectConflict",
        "A Service has the name `gpt-conflict-coordinator`. Then the job `gpt-conflict` is "
        "created.",
        "The Service is deleted.",
        alert_strikes.take_name,
        Answer(
            "gpt-conflict does not train: ObjectConflict: Service gpt-conflict-coordinator is not "
            "of this job, and the job needs one of that name: nothing of it is changed (rename or "
            "delete it, or give the job another name)",
            heals=SOMEBODY,
            todo="rename or delete the object that the message names, or rename the job",
        ),
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
        Answer(LOOP_TRAINS, evidence=("status: Running, 1/1 workers, step ..., loss ...",)),
        prepare=loop_has_history,
        passes=True,
    ),
    Cause(
        "TrainingJobMemoryNearLimit",
        "The program takes memory until 40 MiB of its container's limit are left, and keeps it.",
        "It gives the memory back.",
        alert_strikes.program_fails("memory leak"),
        Answer(LOOP_TRAINS),
    ),
    Cause(
        "TrainingJobGoodputLow",
        "The storage of the samples takes 0.1 s for each. A batch has eight, and a step takes "
        "0.1 s.",
        "The storage is fast again.",
        alert_strikes.program_fails("slow storage"),
        Answer(LOOP_TRAINS),
    ),
    Cause(
        "TrainingJobCoordinatorUnreachable",
        "The network drops all that the coordinator's pod sends to the operator and to "
        "Prometheus. Its workers and its kubelet reach it.",
        "The network passes it on again.",
        alert_strikes.cut_off_coordinator,
        Answer(
            "loop trains, but: CoordinatorUnreachable: coordinator pod loop-c... on node ... does "
            "not answer the operator. It still answers its workers, so it is kept (see kubectl "
            "logs loop-c...)",
            heals="often within a minute; look closer when it lasts longer",
            todo="where the message names a protocol: kubectl trainingjob suspend loop, then "
            "resume it. Otherwise read the coordinator's log, and check network policies between "
            "it and the operator. Deleting its pod is safe: a successor takes over",
        ),
    ),
    Cause(
        "TrainingJobOperatorDown",
        "`kubectl scale` takes all replicas of the operator away.",
        "They are given back.",
        alert_strikes.stop_operator,
        Answer(
            "loop, without an operator: OperatorAway: 1 worker pod runs, and none shows an error; "
            "whether the job trains is in their logs (Judged by kubectl trainingjob from pods and "
            "events: the operator is away.)",
            heals=SOMEBODY,
            todo="start the operator again (kubectl get pods -n regroup-system): without it no pod "
            "is replaced; workers that train go on",
            evidence=("operator: nobody holds the operator's Lease",),
        ),
        about={},
    ),
    Cause(
        "TrainingJobReconcileErrors",
        "The rule about `trainingjobs/status` is taken from the operator's ClusterRole. Then ten "
        "jobs are created that are suspended. (Pauses between failed rounds grow up to a minute "
        "and are not shortened; with the rules as they are, one job suffices.)",
        "The rule is put back.",
        alert_strikes.take_right,
        Answer(
            "idle-0 does not train: StatusRefused: the operator cannot write the status of this "
            'job, and does nothing else for it; pods that run go on: PATCH ...: 403 ... "idle-0" '
            'is forbidden: ... cannot patch resource "trainingjobs/status" ...',
            heals=SOMEBODY,
            todo="mend what the API server's answer names: give the operator back its right to "
            "patch trainingjobs/status (the chart's ClusterRole), ...; it then goes on by itself",
        ),
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
        Answer(
            "gpt-bug does not train: InternalError: the operator met an error that it does not "
            "know (ZeroDivisionError: division by zero): pods that run go on, nothing else is done "
            "for this job, and the operator tries again: its log has the details, please report "
            "them",
            heals="seldom; it is tried again, and mostly fails as before until somebody acts",
            todo="read the operator's log, and report the error; pods that run go on",
        ),
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
        Answer(
            "loop ...: RepeatedFailures: ... failures of the program since ...; ... of 10 restarts "
            "are left (restartPolicy.maxRestarts); the last one: rank 0 on loop-w0-... (node ...) "
            "ended with exit code 1: RuntimeError: shard 7 of the data set is corrupt",
            heals=SOMEBODY,
            todo="mend what the last failure names; kubectl trainingjob logs loop --failed has "
            "more. If all were on one node (kubectl trainingjob timeline loop -o wide), cordon it. "
            "To keep the restarts that are left: kubectl trainingjob suspend loop",
        ),
    ),
)
BY_NAME: Mapping[str, Cause] = {cause.slug: cause for cause in CAUSES}
