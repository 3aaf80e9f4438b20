"""The rights that the page names for each call are those of the requests that it sends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from unittest.mock import Mock

import pytest

import regroup
from regroup import TrainingClient, TrainingJob
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError, Request
from regroup.kubernetes.pod_channels import CommandOutput, CommandStream
from regroup.training_client.kubernetes_job import KubernetesJob
from tests.support.cluster_objects import job_object, pod_object, running_status
from tests.support.kube_api import Json
from tests.support.user_rights import CLIENT_CALLS, Right

IMAGES = {"trainer": "trainer:1", "coordinator": "operator:1"}
RESTS = running_status(phase="Suspended", lastImages=IMAGES)
PODS = (pod_object("gpt-w0-1"), pod_object("gpt-c1", "coordinator"))


class RecordingApi(ClusterApi):
    """Notes what it is asked for, as a role has it, and sends nothing. A command and a port of a
    pod take two rights: releases of Kubernetes differ in which one they look at.
    """

    def __init__(self, status: Json, pods: Sequence[Json] = (), **refused: int) -> None:
        self._custom, self._timeout = Mock(), 30.0
        vars(self)["_core"] = Mock()
        self.asked: set[Right] = set()
        self._found = job_object(status)
        self._made: Json = {}
        self._pods = list(pods)
        self._refused = refused
        """Verb and resource, with a line between them -> status of HTTP."""
        self.phase = "Running"
        """Of pods that are read by their names."""

    def _ask(self, asked: Request, call: Callable[..., Any], **options: Any) -> Json:
        del call
        self.asked.add(Right(asked.verb, asked.resource))
        if asked.verb == "create":
            self._made[asked.resource] = options["body"]
        if status := self._refused.get(f"{asked.verb}_{asked.resource}"):
            raise ClusterError("refused", status)
        if asked.verb == "list":
            return {"items": self._pods}
        if asked.resource == "pods":
            return pod_object(asked.name, "reader", phase=self.phase)
        found: Json = self._made.get(asked.resource, self._found)
        return {**found, "metadata": {"uid": "0123abcd", **found["metadata"]}}

    def _lines(self, asked: Request, call: Callable[..., Any], **options: Any) -> Iterator[bytes]:
        """A watch sees the end of the job."""
        self.asked.add(Right(asked.verb, asked.resource))
        if asked.verb == "watch":
            ended = {**self._found, "status": running_status(phase="Succeeded")}
            yield json.dumps({"type": "MODIFIED", "object": ended}).encode()

    def run_in_pod(self, *asked: Any, **_: Any) -> CommandOutput:
        """The answer fits what lists checkpoints, and what prints a series."""
        self._open("pods/exec")
        return CommandOutput("[]" if "list" in asked[2] else '{"points": []}', "", 0)

    def stream_from_pod(self, *_: Any, **__: Any) -> AbstractContextManager[CommandStream]:
        self._open("pods/exec")
        return nullcontext(Mock())

    def get_of_pod(self, *_: Any, **__: Any) -> str:
        self._open("pods/portforward")
        return '{"points": []}'

    def _open(self, resource: str) -> None:
        self.asked |= {Right("get", resource), Right("create", resource)}


def greet() -> None:
    print("hello")


def client_of(api: ClusterApi) -> TrainingClient:
    client = TrainingClient(namespace="team")
    vars(client._backend)["_api"] = api
    return client


def send(api: ClusterApi) -> None:
    client_of(api).train(greet, name="gpt")


def read_weights(api: ClusterApi) -> None:
    with job_of(api)._weights(None):
        pass


def job_of(api: ClusterApi) -> KubernetesJob:
    return KubernetesJob(api, "team", "gpt")


def trains(**refused: int) -> RecordingApi:
    return RecordingApi(running_status(), PODS, **refused)


def rests(phase: str = "Running", **refused: int) -> RecordingApi:
    """A job without pods; one of the moment gets this phase."""
    api = RecordingApi(RESTS, (), **refused)
    api.phase = phase
    return api


CALLS: dict[str, list[tuple[RecordingApi, Callable[[RecordingApi], object]]]] = {
    "`train(job=...)`": [
        (trains(), lambda api: client_of(api).train(job=TrainingJob("gpt", {"trainer": {}})))
    ],
    "`train(func)`, `train(script=...)`": [
        (trains(), send),
        (trains(create_trainingjobs=409, create_configmaps=409), send),
        (trains(create_configmaps=403), send),
    ],
    "`client.job()`, `status`": [
        (trains(), lambda api: client_of(api).job("gpt")),
        (trains(), lambda api: job_of(api).status),
    ],
    "`wait()`": [(trains(), lambda api: job_of(api).wait(60, progress=False))],
    "`logs()`": [(trains(), lambda api: list(job_of(api).logs()))],
    "`metrics()` while it trains": [(trains(), lambda api: job_of(api).metrics())],
    "`metrics()` at rest": [
        (rests(), lambda api: job_of(api).metrics()),
        (rests("Failed"), lambda api: job_of(api).metrics()),
    ],
    "`load_state_dict()`": [(rests(), read_weights), (rests("Failed"), read_weights)],
    "`checkpoints()`": [
        (rests(create_pods=403), lambda api: job_of(api).checkpoints()),
        (trains(), lambda api: job_of(api).checkpoints()),
        (rests(), lambda api: job_of(api).checkpoints()),
        (rests("Failed"), lambda api: job_of(api).checkpoints()),
    ],
    "`scale()`": [(trains(), lambda api: job_of(api).scale(3))],
    "`suspend()`, `resume()`": [
        (trains(), lambda api: job_of(api).suspend()),
        (trains(), lambda api: job_of(api).resume()),
    ],
    "`delete()`": [(trains(), lambda api: job_of(api).delete())],
}
"""Row of the page -> the call where nothing is amiss, and where more is asked for."""


def asked_by(course: tuple[RecordingApi, Callable[[RecordingApi], object]]) -> set[Right]:
    api, act = course
    with suppress(ClusterError):
        act(api)
    return api.asked


@pytest.mark.parametrize("call", CALLS)
def test_the_page_names_the_rights_that_a_call_takes(call: str) -> None:
    needed, more = CLIENT_CALLS[call]
    first, *others = map(asked_by, CALLS[call])
    assert first - more == needed
    assert first.union(*others) == needed | more


def test_the_page_has_a_row_for_all_that_asks_a_cluster() -> None:
    assert CLIENT_CALLS.keys() == CALLS.keys()
    methods = {name for name in vars(regroup.Job) if not name.startswith("_")} - {"name", "code"}
    assert methods <= set(re.findall(r"`(?:client\.)?(\w+)", " ".join(CLIENT_CALLS)))
