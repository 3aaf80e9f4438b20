"""What `why` says: the operator's reason, with evidence; its own judgement without an operator."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from regroup.kubernetes.event_record import EventRecord, read_events
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.pod_record import NodeRecord, PodRecord, read_pods, read_quota
from regroup.kubernetes.why_report import (
    OperatorSign,
    Scene,
    WhyReport,
    explain,
    operator_sign,
    pod_problem,
    why_lines,
)
from tests.support.cluster_objects import (
    NOW,
    at,
    condition,
    event_object,
    job_record,
    pod_object,
    recovery,
    running_status,
    waiting_status,
)
from tests.support.documented_commands import ROOT

REASONS = (ROOT / "docs/reference/reasons.md").read_text()
PRESENT = OperatorSign("present", "the operator (regroup-1) is at work")
AWAY = OperatorSign("away", "the operator's Lease was renewed 5m ago")
NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
WAITING = job_record(waiting_status("Unschedulable", "pod gpt-w2-3 cannot be scheduled"))
TRAINING = job_record(running_status(recoveries=[]))


def pending_pod() -> dict[str, Any]:
    unplaced = {"type": "PodScheduled", "status": "False", "message": NO_GPUS}
    return pod_object("gpt-w2-3", phase="Pending", node="", conditions=[unplaced])


def ended(code: int, reason: str = "Error", ago: float = 40) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "finishedAt": at(ago)}
    return {"name": "trainer", "state": {"terminated": end}}


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    state = {"waiting": {"reason": reason, "message": message}}
    return [{"name": "trainer", "state": state}]


def read_time(ago: float) -> datetime:
    return NOW - timedelta(seconds=ago)


def test_the_sentence_is_the_operators_own() -> None:
    report = explain(Scene(WAITING, PRESENT), NOW)
    assert (report.reason, report.message) == ("Unschedulable", "pod gpt-w2-3 cannot be scheduled")
    assert report.judged_by == "operator"
    assert "free or add nodes" in report.what_to_do


@pytest.mark.parametrize(
    ("sign", "job", "command"),
    [(AWAY, WAITING, "kubectl get pods -n ops"), (PRESENT, job_record(), "kubectl logs -n ops")],
)
def test_commands_about_the_operator_name_its_namespace(
    sign: OperatorSign, job: JobRecord, command: str
) -> None:
    report = explain(Scene(job, sign, operator_namespace="ops"), NOW)
    assert command in report.what_to_do


def test_the_evidence_is_named_with_its_source() -> None:
    quota = {"metadata": {"name": "gpus"}, "status": {"hard": {"pods": "4"}, "used": {"pods": "4"}}}
    scheduling = event_object("FailedScheduling", NO_GPUS, "Pod", name="gpt-w2-3", count=5)
    scene = Scene(
        WAITING,
        PRESENT,
        read_pods([pending_pod(), pod_object()]),
        read_events([scheduling, event_object("Old", "long ago", ago=7200)]),
        [NodeRecord("n1", ()), NodeRecord("n2", ("it is not Ready",))],
        [read_quota(quota)],
        ["nodes: your role may not read this"],
    )
    lines = why_lines(explain(scene, NOW), 80)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert text.startswith("gpt does not train: Unschedulable: pod gpt-w2-3 cannot be scheduled")
    assert "- status: Pending, 0/3 workers, step 120/500; written 12s ago" in text
    assert f"- pod gpt-w2-3: has no node for 5m: {NO_GPUS}" in text
    assert "- node n2: it is not Ready" in text
    assert "- quota gpus: used up: pods 4 of 4" in text
    assert f"- event FailedScheduling about pod gpt-w2-3, 60s ago, 5 times: {NO_GPUS}" in text
    assert "Not seen: - nodes: your role may not read this" in text
    assert "Heals: no, somebody has to act" in text
    assert "long ago" not in text
    assert "gpt-w0-1" not in text


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("training: step 120 of 500 on 3 workers", "gpt trains: step 120 of 500 on 3 workers"),
        ("running train.py on 3 workers", "gpt trains: running train.py on 3 workers"),
    ],
)
def test_a_job_that_trains_says_so_once(message: str, sentence: str) -> None:
    job = job_record(running_status(message=message))
    lines = why_lines(explain(Scene(job, PRESENT), NOW), 80)
    assert lines[0] == sentence
    assert not any(line.startswith("Do:") for line in lines)


@pytest.mark.parametrize(
    ("kind", "value", "reason", "heals", "todo"),
    [
        ("Degraded", "True", "VolumeUnavailable", "no, somebody has to act", "free space"),
        ("Degraded", "True", "WorkersMissing", "often within a minute", "kubectl get pods -l"),
        ("Degraded", "True", "Stragglers", "no, somebody has to act", "cordon the node"),
        ("Degraded", "True", "NoProgress", "often, but only once", "trainingjob debug gpt"),
        ("Degraded", "True", "CoordinatorUnreachable", "often within a", "suspend gpt"),
        ("Checkpointed", "False", "SaveFailed", "seldom", "free the space"),
    ],
)
def test_a_job_that_trains_with_a_fault_says_the_fault_and_what_to_do(
    kind: str, value: str, reason: str, heals: str, todo: str
) -> None:
    fault = condition(kind, value, reason, "/data: no space left")
    ready = condition("Ready", "True", "Training", "workers training: 3")
    report = explain(Scene(job_record(running_status(conditions=[ready, fault])), PRESENT), NOW)
    lines = why_lines(report, 120)
    assert lines[0] == f"gpt trains, but: {reason}: /data: no space left"
    assert report.trains
    assert sum("/data" in line for line in lines) == 1
    assert next(line for line in lines if line.startswith("Heals: ")).startswith(f"Heals: {heals}")
    assert todo in " ".join(line for line in lines if line.startswith("Do: "))


def used_up(resource: str) -> dict[str, Any]:
    status = {"hard": {resource: "4"}, "used": {resource: "4"}}
    return {"metadata": {"name": "gpus"}, "status": status}


OTHERS = [pod_object("gpt-w0-1"), pod_object("gpt-w1-1")]


@pytest.mark.parametrize(
    ("pods", "quotas", "heals", "todo"),
    [
        ([pending_pod()], [], "no, somebody has to act", "free or add nodes"),
        (
            [pod_object("gpt-w2-3", containerStatuses=waiting("ImagePullBackOff", "x"))],
            [], "no, somebody has to act", "spec.image",
        ),
        (OTHERS, [used_up("pods")], "no, somebody has to act", "raise the quota"),
        (
            [*OTHERS, pod_object("gpt-w2-1", phase="Failed")], [used_up("requests.nvidia.com/gpu")],
            "no, somebody has to act", "raise the quota",
        ),
        (
            [*OTHERS, pod_object("gpt-w2-3")], [used_up("requests.nvidia.com/gpu")],
            "often within a minute", "get pods",
        ),
        (OTHERS, [used_up("count/configmaps")], "often within a minute", "get pods"),
        (OTHERS, [used_up("requests.storage")], "often within a minute", "get pods"),
        ([pod_object("gpt-w2-3", phase="Pending")], [], "often within a minute", "get pods"),
    ],
)  # fmt: skip
def test_what_a_missing_worker_waits_for_says_whether_it_heals(
    pods: list[dict[str, Any]], quotas: list[dict[str, Any]], heals: str, todo: str
) -> None:
    conditions = [
        condition("Ready", "True", "Training", "workers training: 2"),
        condition("Degraded", "True", "WorkersMissing", "2 of 3 workers take part"),
    ]
    job = job_record(running_status(conditions=conditions), replicas=3)
    scene = Scene(job, PRESENT, read_pods(pods), quotas=[read_quota(one) for one in quotas])
    report = explain(scene, NOW)
    assert (report.reason, report.judged_by) == ("WorkersMissing", "operator")
    assert report.heals.startswith(heals)
    assert todo in report.what_to_do


@pytest.mark.parametrize("trains", [True, False])
def test_a_worker_without_a_node_since_its_node_is_lost_needs_that_node(trains: bool) -> None:
    why = "node n2 does not respond; pod gpt-w2-3 cannot be scheduled"
    conditions = [
        condition("Ready", "True", "Training", "workers training: 2"),
        condition("Degraded", "True", "WorkersMissing", f"2 of 3 workers take part; {why}"),
    ]
    status = (
        running_status(conditions=conditions, suspectedNodes=["n2"])
        if trains
        else waiting_status("Unschedulable", why, suspectedNodes=["n2"])
    )
    report = explain(Scene(job_record(status), PRESENT, read_pods([pending_pod()])), NOW)
    assert report.heals == "no, somebody has to act"
    assert report.what_to_do == (
        "bring node n2 back (kubectl describe node n2), or add another one: the worker takes part "
        "as soon as it has a node"
    )


FAILS = "the program failed 7 times since 11:40; 3 of 10 restarts are left"


def test_a_job_that_fails_again_and_again_says_so_between_two_tries() -> None:
    """Each of its tries trains for a moment, and the operator says Ready meanwhile."""
    fault = condition("Degraded", "True", "RepeatedFailures", FAILS)
    ready = condition("Ready", "True", "Training", "workers training: 3")
    report = explain(Scene(job_record(running_status(conditions=[ready, fault])), PRESENT), NOW)
    assert why_lines(report, 120)[0] == f"gpt trains, but: RepeatedFailures: {FAILS}"
    assert report.heals == "no, somebody has to act"
    assert "logs gpt --failed" in report.what_to_do


def test_what_else_disturbs_a_job_with_a_fault_is_evidence() -> None:
    conditions = [
        condition("Ready", "True", "Training", "workers training: 3"),
        condition("Degraded", "True", "RepeatedFailures", FAILS),
    ]
    unanswered = "coordinator pod gpt-c1 does not answer the operator: it takes too long"
    doing = "training: step 120 of 500 on 3 workers"

    def evidence(fault: bool) -> tuple[str, ...]:
        given = running_status(message=f"{doing}; {unanswered}", conditions=conditions[: 1 + fault])
        return explain(Scene(job_record(given), PRESENT), NOW).evidence

    assert f"status: {unanswered}" in evidence(True)
    assert f"status: {unanswered}" not in evidence(False), "the sentence says it"


def test_a_job_that_fails_again_and_again_says_so_while_the_next_try_begins() -> None:
    given = waiting_status("GenerationFailed", "rank 0 ended; the ranks are being stopped")
    given["conditions"].append(condition("Degraded", "True", "RepeatedFailures", FAILS))
    given["phase"] = "Recovering"
    report = explain(Scene(job_record(given), PRESENT), NOW)
    assert why_lines(report, 120)[0] == f"gpt does not train: RepeatedFailures: {FAILS}"
    assert report.heals == "no, somebody has to act"
    ready = "condition Ready=False, GenerationFailed: rank 0 ended; the ranks are being stopped"
    assert ready in report.evidence


def test_what_somebody_has_to_mend_first_goes_before_failures() -> None:
    given = waiting_status("ImageError", "cannot pull image x")
    given["conditions"].append(condition("Degraded", "True", "RepeatedFailures", FAILS))
    assert explain(Scene(job_record(given), PRESENT), NOW).reason == "ImageError"


def test_what_the_sentence_says_is_no_evidence_again() -> None:
    missing = f"2 of 3 workers take part; pod gpt-w2-3 cannot be scheduled: {NO_GPUS}"
    conditions = [
        condition("Ready", "True", "Training", "workers training: 2"),
        condition("Degraded", "True", "WorkersMissing", missing),
        condition(
            "Scheduled", "False", "Unschedulable", f"pod gpt-w2-3 cannot be scheduled: {NO_GPUS}"
        ),
    ]
    job = job_record(running_status(conditions=conditions))
    report = explain(Scene(job, PRESENT), NOW)
    assert not [text for text in report.evidence if text.startswith("condition")]


def test_events_that_differ_in_numbers_are_shown_once_the_newest() -> None:
    failed = [
        event_object("CheckpointFailed", f"checkpoint of step {step} failed", ago=ago)
        for step, ago in ((150, 5), (100, 30), (50, 60))
    ]
    refused = [
        event_object("QuotaExceeded", f"pods {pod} is forbidden", ago=90)
        for pod in ("gpt-c4", "gpt-c3", "gpt-w0-2", "gpt-w0-1", "gpt-w1-1")
    ]
    report = explain(Scene(TRAINING, PRESENT, events=read_events([*failed, *refused])), NOW)
    shown = [text for text in report.evidence if text.startswith("event")]
    assert len(shown) == 4
    assert shown[:1] == [
        "event CheckpointFailed, 5s ago: checkpoint of step 150 failed (and 2 more like this)"
    ]


def test_no_checkpoint_yet_is_no_fault() -> None:
    young = condition("Checkpointed", "False", "NoCheckpoint", "no checkpoint yet")
    ready = condition("Ready", "True", "Training", "workers training: 3")
    report = explain(Scene(job_record(running_status(conditions=[ready, young])), PRESENT), NOW)
    assert (report.reason, report.what_to_do) == ("Training", "nothing")


def test_an_old_progress_alone_is_no_fault() -> None:
    """Where many jobs train, it is written every few minutes."""
    progress = {**running_status()["progress"], "updatedTime": at(200)}
    training = job_record(running_status(progress=progress))
    assert explain(Scene(training, PRESENT), NOW).reason == "Training"


@pytest.mark.parametrize(
    ("kind", "phase", "reason"),
    [("Failed", "Failed", "BackoffLimit"), ("Complete", "Succeeded", "Done")],
)
def test_a_job_that_has_ended_says_how_also_without_an_operator(
    kind: str, phase: str, reason: str
) -> None:
    end = condition(kind, "True", reason, "the program ended with exit code 1")
    job = job_record(running_status(phase=phase, conditions=[end]))
    for sign in (PRESENT, AWAY):
        report = explain(Scene(job, sign), NOW)
        head = f"gpt has ended: {reason}: the program ended with exit code 1"
        assert why_lines(report, 80)[0] == head


def test_the_last_recovery_counts_for_an_hour() -> None:
    def is_evidence(ago: float) -> bool:
        job = job_record(waiting_status("GenerationFailed", "x", recoveries=[recovery(2, ago)]))
        return any("last recovery" in text for text in explain(Scene(job, PRESENT), NOW).evidence)

    assert is_evidence(600)
    assert not is_evidence(4000)


def test_many_pods_with_the_same_trouble_do_not_fill_the_screen() -> None:
    pods = read_pods([pod_object(f"gpt-w{n}-1", phase="Pending", node="") for n in range(64)])
    evidence = explain(Scene(WAITING, PRESENT, pods), NOW).evidence
    assert len(evidence) < 12
    assert "and 56 more pods like these" in evidence


# --- whether the operator is at work --------------------------------------------------------------


def lease(ago: float, holder: str = "regroup-1") -> dict[str, Any]:
    spec = {"renewTime": at(ago), "holderIdentity": holder, "leaseDurationSeconds": 15}
    return {"spec": spec}


@pytest.mark.parametrize(
    ("given", "state"),
    [(lease(5), "present"), (lease(300), "away"), (lease(5, ""), "away"), ({}, "away")],
)
def test_the_lease_says_whether_the_operator_is_at_work(given: dict[str, Any], state: str) -> None:
    assert operator_sign(WAITING, given, [], [], NOW).state == state


@pytest.mark.parametrize(
    ("job", "pods", "state"),
    [
        (WAITING, [], "unknown"),
        (replace(WAITING, generation=2), [], "away"),
        (replace(WAITING, generation=2, spec_time=NOW), [], "unknown"),
        (job_record(), [], "away"),
        (replace(job_record(), created=NOW), [], "unknown"),
        (replace(WAITING, status_time=read_time(300)), [ended(1, ago=100)], "away"),
        (replace(WAITING, status_time=read_time(300)), [ended(1, ago=20)], "unknown"),
        (replace(WAITING, status_time=read_time(50)), [ended(1, ago=100)], "unknown"),
    ],
)
def test_without_the_lease_what_is_left_undone_says_it(
    job: JobRecord, pods: list[dict[str, Any]], state: str
) -> None:
    records = read_pods([pod_object(containerStatuses=pods)])
    assert operator_sign(job, None, records, [], NOW).state == state


def test_a_job_that_no_operator_has_seen_yet() -> None:
    report = explain(Scene(replace(job_record(), created=NOW), OperatorSign("unknown", "")), NOW)
    assert report.message == "no operator has looked at this job yet"
    assert report.evidence[0].startswith("status: Unknown")


def test_a_job_that_the_operator_leaves_without_a_status() -> None:
    report = explain(Scene(job_record(), PRESENT), NOW)
    assert report.reason == "NotObserved"
    assert "\n- `NotObserved`: " in REASONS
    assert "is at work, and this job, created 121m ago, has no status" in report.message
    assert report.heals == "no, somebody has to act"
    assert "trainingjobs/status" in report.what_to_do


REFUSED = (
    "the operator cannot write the status of this job, and does nothing else for it; pods that run "
    'go on: PATCH .../trainingjobs/gpt/status: 403 trainingjobs.regroup.dev "gpt" is forbidden'
)


def refused(ago: float, **fields: Any) -> list[EventRecord]:
    return read_events([event_object("StatusRefused", REFUSED, ago=ago, **fields)])


@pytest.mark.parametrize(
    ("job", "ago"),
    [
        (replace(job_record(), created=NOW), 1),
        (job_record(), 3600),
        (replace(TRAINING, status_time=read_time(600)), 300),
        (replace(WAITING, status_time=read_time(600)), 300),
    ],
)
def test_a_status_that_the_api_server_refuses_is_the_reason(job: JobRecord, ago: float) -> None:
    report = explain(Scene(job, PRESENT, events=refused(ago)), NOW)
    assert (report.reason, report.message) == ("StatusRefused", REFUSED)
    assert "\n- `StatusRefused`: " in REASONS
    assert report.heals == "no, somebody has to act"
    assert "right to patch trainingjobs/status" in report.what_to_do


def test_a_refusal_counts_no_longer_once_the_status_is_written_or_after_its_hour() -> None:
    written = replace(TRAINING, status_time=read_time(100))
    assert explain(Scene(written, PRESENT, events=refused(300)), NOW).reason == "Training"
    assert explain(Scene(job_record(), PRESENT, events=refused(4000)), NOW).reason == "NotObserved"
    of_pod = refused(30, kind="Pod", name="gpt-w0-1")
    assert explain(Scene(job_record(), PRESENT, events=of_pod), NOW).reason == "NotObserved"


def test_an_operator_whose_status_is_refused_is_not_away_unless_its_lease_says_so() -> None:
    sign = operator_sign(job_record(), None, [], refused(300), NOW)
    assert sign.state == "present"
    assert operator_sign(job_record(), lease(300), [], refused(300), NOW).state == "away"
    assert explain(Scene(job_record(), sign, events=refused(300)), NOW).reason == "StatusRefused"
    assert explain(Scene(job_record(), AWAY, events=refused(300)), NOW).reason == "NoPods"


CRASHING_SIDECAR: dict[str, Any] = {
    "initContainerStatuses": [
        {"name": "regroup-agent", "state": {"terminated": {"exitCode": 0}}},
        {
            "name": "proxy",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {
                "terminated": {"exitCode": 3, "finishedAt": at(40), "message": "begins\nno route\n"}
            },
        },
    ],
    "containerStatuses": waiting("PodInitializing"),
}

# --- own judgement --------------------------------------------------------------------------------


def judged(pods: list[dict[str, Any]], events: list[dict[str, Any]] | None = None) -> WhyReport:
    scene = Scene(WAITING, AWAY, read_pods(pods), read_events(events or []))
    report = explain(scene, NOW)
    assert report.judged_by == "kubectl trainingjob"
    return report


@pytest.mark.parametrize(
    ("pods", "events", "reason", "words"),
    [
        ([pending_pod()], [], "Unschedulable", NO_GPUS),
        (
            [pod_object(phase="Pending", containerStatuses=waiting("ErrImagePull", "no such tag"))],
            [],
            "ImageError",
            "no such tag",
        ),
        (
            [pod_object(containerStatuses=waiting("CreateContainerConfigError", "no secret s"))],
            [],
            "CreateContainerConfigError",
            "no secret s",
        ),
        (
            [pod_object(containerStatuses=waiting("CreateContainerError", "no command"))],
            [],
            "CreateContainerError",
            "no command",
        ),
        (
            [pod_object(containerStatuses=waiting("RunContainerError", "no device"))],
            [],
            "CreateContainerError",
            "no device",
        ),
        (
            [pod_object(phase="Pending")],
            [event_object("FailedMount", "claim gone", "Pod", name="gpt-w0-1")],
            "FailedMount",
            "claim gone",
        ),
        (
            [pod_object(containerStatuses=[ended(137, "OOMKilled")])],
            [],
            "OutOfMemory",
            "gpt-w0-1 ran out of memory",
        ),
        ([pod_object(containerStatuses=[ended(3)])], [], "PodFailed", "exit code 3"),
        (
            [pod_object(phase="Pending", **CRASHING_SIDECAR)],
            [],
            "SidecarCrashing",
            (
                "container proxy of pod gpt-w0-1 on node n1 fails each time that it is started: it "
                "ended last with exit code 3: no route"
            ),
        ),
        ([], [], "NoPods", "no pods"),
        ([pod_object()], [], "OperatorAway", "1 worker pod runs"),
    ],
)
def test_without_an_operator_pods_and_events_are_judged(
    pods: list[dict[str, Any]], events: list[dict[str, Any]], reason: str, words: str
) -> None:
    report = judged(pods, events)
    assert report.reason == reason
    assert f"\n- `{reason}`: " in REASONS
    assert words in report.message
    assert "start the operator again" in report.what_to_do
    text = why_lines(report, 80)[0]
    assert text.startswith(f"gpt, without an operator: {reason}: ")


# --- pods -----------------------------------------------------------------------------------------


def one_pod(document: dict[str, Any]) -> PodRecord:
    (pod,) = read_pods([document])
    return pod


def test_the_end_of_a_sidecar_is_shown_that_waits_to_be_started_again() -> None:
    assert pod_problem(one_pod(pod_object(phase="Pending", **CRASHING_SIDECAR)), NOW) == (
        "CrashLoopBackOff on node n1; container proxy ended with exit code 3 40s ago: no route"
    )


def test_what_is_wrong_with_a_pod() -> None:
    crashed = waiting("CrashLoopBackOff")[0]
    end = {"terminated": {"exitCode": 1, "finishedAt": at(40)}}
    looping = pod_object(containerStatuses=[{**crashed, "lastState": end}])
    assert pod_problem(one_pod(looping), NOW) == (
        "CrashLoopBackOff on node n1; its container ended with exit code 1 40s ago"
    )
    assert pod_problem(one_pod(pod_object()), NOW) == ""
    assert one_pod(looping).failed


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": {"labels": {"regroup.dev/index": "x"}}},
        {"status": {"containerStatuses": [{}], "conditions": [{}]}, "spec": {"containers": [{}]}},
    ],
)
def test_a_pod_that_says_nothing(document: dict[str, Any]) -> None:
    assert one_pod(document).index is None


def test_a_job_of_another_release_may_have_an_unknown_reason() -> None:
    job = job_record(waiting_status("SomethingNew", "what is new"))
    report = explain(Scene(job, PRESENT), NOW)
    assert (report.reason, report.message) == ("SomethingNew", "what is new")
    assert report.what_to_do.startswith("read the message")


def test_what_a_program_wrote_is_evidence_and_no_part_of_the_sentence() -> None:
    error = "NonFiniteError: steps 3 to 12: the loss is not finite"
    wrote = [f"step {step}: the update was skipped" for step in range(3, 12)]
    message = "\n".join([f"rank 0 ended with exit code 2: {error}", *wrote, error[:30]])
    failed = running_status(
        phase="Failed", conditions=[condition("Failed", "True", "TrainingFailed", message)]
    )
    events = read_events([event_object("Failed", message)])
    report = explain(Scene(job_record(failed), PRESENT, events=events), NOW)
    assert report.message == f"rank 0 ended with exit code 2: {error}"
    assert [line for line in report.evidence if "skipped" in line] == [
        f"its program wrote: step {step}: the update was skipped" for step in (9, 10, 11)
    ]
    (event,) = (line for line in report.evidence if line.startswith("event"))
    assert event == f"event Failed, 60s ago: {report.message}"
