"""A tenant that creates drawn jobs, one after the other, and what the operator makes of them."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from bench.fuzz.judgement import is_judged, ready, unnamed_refusal
from regroup_operator.api.resource import API_VERSION, KIND
from tests.support.hostile_specs import draw_job
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import make_claim

STATUS_SECONDS = 90.0
"""How long the operator may take until a job shows what it makes of it."""
PAGE = 20
"""Jobs that are read at a time: a drawn one may be large."""
MADE = (
    "/api/v1/namespaces/{}/pods",
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/secrets",
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
)
"""Paths of what the operator makes for jobs."""
DELETE_NOW = {"gracePeriodSeconds": 0}


@dataclass
class Findings:
    """What was found of all jobs."""

    jobs: int = 0
    """That the API server took."""
    refused: int = 0
    """That it did not."""
    silent: list[str] = field(default_factory=list)
    """Specs of jobs that show nothing after STATUS_SECONDS."""
    unnamed: list[str] = field(default_factory=list)
    """Refusals that do not name field and value."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of the condition Ready."""


class HostileTenant:
    """Creates jobs in one namespace, in waves."""

    def __init__(self, namespace: Namespace, seed: int) -> None:
        make_claim(namespace)
        self._namespace = namespace
        self._random = Random(seed)
        self._numbers = itertools.count(1)
        self.findings = Findings()

    def create(self, count: int, every: float) -> None:
        """Create so many jobs that the API server takes, one each `every` seconds or later. It
        rests as long as each request took.
        """
        wanted = self.findings.jobs + count
        while self.findings.jobs < wanted:
            begun = time.monotonic()
            self._create_one()
            took = time.monotonic() - begun
            time.sleep(max(took, every - took))

    def await_judgement(self) -> None:
        """Wait until each job shows what the operator makes of it, and note what is wrong."""
        deadline = time.monotonic() + STATUS_SECONDS
        while (late := [job for job in self._jobs() if not is_judged(job)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(1.0)
        self.findings.silent += [json.dumps(job["spec"])[:2000] for job in late]
        for job in self._jobs():
            self._note(job)

    def delete_all(self) -> None:
        """Delete the jobs, then what was made for them."""
        namespace = self._namespace
        for path in (namespace.jobs(), *(made.format(namespace.name) for made in MADE)):
            answer = namespace.api.request("DELETE", path, DELETE_NOW)
            assert answer.status == 200, answer.message

    def _create_one(self) -> None:
        document = {"apiVersion": API_VERSION, "kind": KIND}
        named = {**document, "metadata": {"name": f"job-{next(self._numbers)}"}}
        body = f'{json.dumps(named)[:-1]}, "spec": {draw_job(self._random)}}}'
        try:
            answer = self._namespace.api.request("POST", self._namespace.jobs(), body)
        except TimeoutError:  # on a machine that does too much: whether it was taken is unknown
            return
        if answer.status == 201:
            self.findings.jobs += 1
        else:
            assert answer.status in (400, 422), answer.message
            self.findings.refused += 1

    def _jobs(self) -> Iterator[Json]:
        token = ""
        while True:
            path = f"{self._namespace.jobs()}?limit={PAGE}&continue={token}"
            answer = self._namespace.api.request("GET", path)
            assert answer.status == 200, answer.message
            yield from answer.body["items"]
            token = answer.body["metadata"].get("continue", "")
            if not token:
                return

    def _note(self, job: Json) -> None:
        self.findings.reasons[ready(job).get("reason", "of another controller")] += 1
        if message := unnamed_refusal(job):
            self.findings.unnamed.append(message)
