"""What is read of a Kubernetes object, also of one that somebody has edited."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.api import names
from regroup_operator.observe.kubernetes_objects import (
    read_job,
    read_mount_failure,
    read_pod,
    read_pull,
    read_service,
)
from tests.support.specs import SMALLEST


def make_pod(**metadata: Any) -> dict[str, Any]:
    """A worker pod with a sidecar before its main container; `metadata` overrides."""
    labels = names.labels("gpt", names.WORKER, index=2)
    containers = [{"name": "sidecar", "image": "proxy:7"}, {"name": "trainer", "image": "t:1"}]
    return {
        "metadata": {"name": "gpt-w2-1", "uid": "uid-1", "labels": labels, **metadata},
        "spec": {"containers": containers},
    }


def test_the_image_is_that_of_the_main_container() -> None:
    assert read_pod(make_pod()).image == "t:1"


WAITS = "PodInitializing"
CRASHES = "CrashLoopBackOff"


def waits(name: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("before", "beside", "container", "reason"),
    [
        ([], [waits("trainer", "ErrImagePull")], "", "ErrImagePull"),
        ([], [waits("trainer", "ContainerCreating")], "", "ContainerCreating"),
        ([waits("regroup-agent", "ImagePullBackOff")], [], "regroup-agent", "ImagePullBackOff"),
        (
            [waits("fetch", "CreateContainerConfigError")],
            [waits("trainer", WAITS)],
            "fetch",
            "CreateContainerConfigError",
        ),
        (
            [waits("fetch", WAITS)],
            [waits("proxy", "ErrImagePull"), {"name": "trainer", "state": {"running": {}}}],
            "proxy",
            "ErrImagePull",
        ),
        ([waits("proxy", CRASHES)], [waits("trainer", WAITS)], "proxy", CRASHES),
        ([waits("proxy", CRASHES)], [waits("trainer", "ErrImagePull")], "", "ErrImagePull"),
        (
            [waits("proxy", CRASHES), waits("fetch", "ErrImagePull")],
            [waits("trainer", WAITS)],
            "fetch",
            "ErrImagePull",
        ),
    ],
)
def test_of_the_containers_of_a_worker_the_one_that_cannot_start_is_shown(
    before: list[Any], beside: list[Any], container: str, reason: str
) -> None:
    status = {"initContainerStatuses": before, "containerStatuses": beside}
    pod = read_pod({**make_pod(), "status": status})
    assert (pod.waiting_container, pod.waiting_reason) == (container, reason)


def ended(name: str, code: int, message: str = "") -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": "Error", "message": message}
    return {"name": name, "state": {"terminated": terminated}}


def test_the_end_of_an_init_container_is_that_of_a_pod_whose_main_container_never_ran() -> None:
    before = [ended("regroup-agent", 0), ended("packages", 1, "no such package")]
    beside = [waits("trainer", WAITS)]
    status = {"phase": "Failed", "initContainerStatuses": before, "containerStatuses": beside}
    pod = read_pod({**make_pod(), "status": status})
    assert (pod.ended_container, pod.exit_code) == ("packages", 1)
    assert pod.exit_message == "no such package"


def test_the_end_of_a_sidecar_that_crashes_is_shown_while_it_waits_to_be_started_again() -> None:
    last = {"lastState": ended("proxy", 3, "no route\n")["state"]}
    before = [ended("regroup-agent", 0), {**waits("proxy", CRASHES), **last}]
    status = {"initContainerStatuses": before, "containerStatuses": [waits("trainer", WAITS)]}
    pod = read_pod({**make_pod(), "status": {**status, "phase": "Pending"}})
    shown = (pod.waiting_container, pod.ended_container, pod.exit_code, pod.exit_message)
    assert shown == ("proxy", "proxy", 3, "no route\n")


def test_a_sidecar_that_is_stopped_does_not_speak_for_the_init_container_that_failed() -> None:
    document = make_pod()
    sidecar = {"name": "proxy", "image": "p:1", "restartPolicy": "Always"}
    document["spec"]["initContainers"] = [sidecar, {"name": "packages", "image": "t:1"}]
    before = [ended("proxy", 143), ended("packages", 1, "no such package")]
    beside = [waits("trainer", WAITS)]
    status = {"phase": "Failed", "initContainerStatuses": before, "containerStatuses": beside}
    pod = read_pod({**document, "status": status})
    assert (pod.ended_container, pod.exit_code) == ("packages", 1)


@pytest.mark.parametrize(
    ("phase", "before", "beside"),
    [
        ("Failed", ended("packages", 1), ended("trainer", 3)),
        ("Failed", ended("packages", 0), waits("trainer", WAITS)),
        ("Pending", ended("packages", 1), waits("trainer", WAITS)),
    ],
)
def test_otherwise_it_is_not(phase: str, before: dict[str, Any], beside: dict[str, Any]) -> None:
    status = {"phase": phase, "initContainerStatuses": [before], "containerStatuses": [beside]}
    pod = read_pod({**make_pod(), "status": status})
    assert (pod.ended_container, pod.exit_code) in [("", 3), ("", None)]


def test_what_registries_runtimes_and_schedulers_report_is_one_printable_line() -> None:
    written = "no\n2026-01-01 INFO other/gpt: \x1b[2Jdone"
    place = {"type": "PodScheduled", "reason": "Unschedulable", "message": written}
    status = {"containerStatuses": [waits("trainer", "ErrImagePull", written)]}
    pod = read_pod({**make_pod(), "status": {**status, "conditions": [place]}})
    assert pod.waiting_message == pod.unschedulable == r"no\n2026-01-01 INFO other/gpt: \x1b[2Jdone"


def test_what_is_beside_the_container_of_a_coordinator_does_not_speak_for_it() -> None:
    labels = names.labels("gpt", names.COORDINATOR, term=1)
    beside = [waits("proxy", "ErrImagePull"), {"name": "coordinator", "state": {"running": {}}}]
    document = make_pod(name="gpt-c1", labels=labels)
    pod = read_pod({**document, "status": {"containerStatuses": beside}})
    assert (pod.role, pod.waiting_reason) == (names.COORDINATOR, "")


@pytest.mark.parametrize(
    "edited",
    [
        {names.INDEX: "x"},
        {names.INDEX: "5_0"},
        {names.INDEX: "9" * 63},
        {names.INDEX: None},
        {names.TERM: "third"},
        {names.ROLE: None},
    ],
)
def test_a_pod_whose_labels_cannot_be_read_has_no_role(edited: dict[str, str | None]) -> None:
    labels = {**make_pod()["metadata"]["labels"], **edited}
    kept = {name: value for name, value in labels.items() if value is not None}
    assert read_pod(make_pod(labels=kept)).role == ""


def test_a_copy_of_a_worker_under_a_name_of_its_own_is_no_worker() -> None:
    assert read_pod(make_pod(name="gpt-w2-debug")).role == ""


def test_numbers_above_those_that_were_counted_are_read() -> None:
    pod = read_pod(make_pod(name="gpt-w2-1767312000"))
    assert (pod.role, pod.index, pod.term) == (names.WORKER, 2, -1)


def test_what_somebody_has_written_into_a_pod_is_kept_within_bounds() -> None:
    nodes = ",".join(f"n{number}" for number in range(512))
    assert read_pod(make_pod(annotations={names.EXCLUDED_NODES: nodes})).excluded_nodes == tuple(
        nodes.split(",")
    )
    flood = {names.EXCLUDED_NODES: "ab," * 80_000, names.NNODES: "1" * 200_000}
    pod = make_pod(annotations=flood)
    pod["spec"]["containers"][1]["image"] = "i" * 1_000_000
    read = read_pod(pod)
    assert len(read.excluded_nodes) == 512
    assert len(read.nnodes) == 32
    assert len(read.image) == 4096


def test_a_pod_that_was_deleted_by_force_is_known_as_such() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert not read_pod(make_pod(**deleted, deletionGracePeriodSeconds=30)).is_forced
    assert read_pod(make_pod(**deleted, deletionGracePeriodSeconds=0)).is_forced


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", None])
def test_a_time_of_a_pod_that_nothing_can_be_computed_with_is_none(time: str | None) -> None:
    pod = make_pod()
    pod["spec"]["nodeName"] = "n1"
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time}
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 1, "finishedAt": time}}}
    pod["status"] = {"conditions": [scheduled], "containerStatuses": [ended]}
    assert (read_pod(pod).placed, read_pod(pod).ended) == ("", "")
    scheduled["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    assert read_pod(pod).placed == "2026-01-01T00:00:00Z"
    began = {"startedAt": time}
    pod["status"] = {"containerStatuses": [{"name": "trainer", "state": {"running": began}}]}
    assert read_pod(pod).began == ""
    began["startedAt"] = "2026-01-01T00:00:00Z"
    assert read_pod(pod).began == "2026-01-01T00:00:00Z"


def make_event(reason: str, second: int, message: str = "no such server") -> dict[str, Any]:
    time = f"2026-01-01T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "lastTimestamp": time, "eventTime": None}


def test_a_mount_fails_as_long_as_nothing_newer_happens_to_the_pod() -> None:
    events = [
        make_event("Scheduled", 0),
        make_event("FailedMount", 5),
        make_event("FailedMount", 2),
    ]
    assert read_mount_failure(events) == "no such server"
    assert read_mount_failure([*events, make_event("Pulling", 5)]) == ""
    assert read_mount_failure([make_event("FailedAttachVolume", 1)]) == "no such server"
    assert read_mount_failure([]) == ""


def test_an_image_is_pulled_until_something_newer_happens_to_the_pod() -> None:
    events = [make_event("Scheduled", 0), make_event("Pulling", 1, 'Pulling image "a:2"')]
    assert read_pull(events) == 'Pulling image "a:2"'
    assert read_pull([*events, make_event("Failed", 9)]) == ""


def test_an_event_without_a_time_or_a_message_is_no_mount_failure() -> None:
    assert read_mount_failure([{"reason": "FailedMount", "lastTimestamp": None}]) == ""


def test_a_service_whose_selector_cannot_be_read_selects_no_term() -> None:
    service = {"spec": {"selector": {names.TERM: "newest"}, "clusterIP": "198.19.0.1"}}
    assert read_service(service).term == -1


def test_what_annotations_of_a_job_ask_for_is_read_whole_or_not_at_all() -> None:
    def read(value: str) -> tuple[str, str]:
        annotations = {names.CHECKPOINT_NOW: "now-1", names.RESTART: value}
        metadata = {"namespace": "team", "name": "gpt", "uid": "u", "annotations": annotations}
        job = read_job({"metadata": metadata, "spec": SMALLEST}, datetime.now(UTC))
        return job.checkpoint_request, job.restart_request

    longest = "x" * 59 + "@4000"
    assert read(longest) == ("now-1", longest)
    assert read(f"x{longest}") == ("now-1", ""), "without its step it would mean another checkpoint"


@pytest.mark.parametrize(
    ("value", "python"), [("3.12", "3.12"), ("3.12.1", ""), ("3", ""), ("3.\u0663", "")]
)
def test_the_python_that_the_code_of_a_job_needs(value: str, python: str) -> None:
    annotations = {names.PYTHON: value}
    metadata = {"namespace": "team", "name": "gpt", "uid": "u", "annotations": annotations}
    assert read_job({"metadata": metadata, "spec": SMALLEST}, datetime.now(UTC)).python == python


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        (names.worker("gpt", 3, 12), "gpt"),
        (names.worker("gpt-w1", 0, 1), "gpt-w1"),
        (names.coordinator("gpt", 2), "gpt"),
        (names.store("my-gpt", 1), "my-gpt"),
        ("gpt-w1", ""),
        ("gpt", ""),
    ],
)
def test_the_name_of_a_pod_holds_that_of_its_job(pod: str, job: str) -> None:
    assert names.job_of_pod(pod) == job
