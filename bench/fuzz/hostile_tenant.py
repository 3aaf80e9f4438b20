"""A tenant that is as hostile as it can, and what the operator makes of its jobs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.fuzz.findings import MOST_CHARACTERS, Findings
from bench.fuzz.hostile_client import DELETE_NOW, DRAWN, RIGHTS, DrawnJobs, HostileClient
from bench.fuzz.judgement import is_judged, ready, refusal, unnamed_refusal
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import make_claim
from tests.support.user_rights import grant

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


class HostileTenant:
    """The clients of one namespace. In each wave they create so many drawn jobs, and change and
    delete others of their own.
    """

    def __init__(self, namespace: Namespace, seed: int, clients: int, findings: Findings) -> None:
        """`namespace` is reached as an administrator, to judge and to clean up."""
        make_claim(namespace)
        self._namespace = namespace
        self._user = f"system:serviceaccount:{namespace.name}:default"
        grant(namespace, self._user, RIGHTS)
        self._drawn = DrawnJobs(seed)
        self._clients = clients
        self._findings = findings
        self._waves = 0
        self.requests = 0
        self.seconds = 0.0
        """Of all waves, in which it sent these requests."""

    @contextmanager
    def at_work(self, count: int) -> Iterator[None]:
        """Inside, its clients send one request after the other, until `count` more drawn jobs are
        taken and beyond. Raises the error of a client.
        """
        self._waves += 1
        self._drawn.want(count)
        over, begun = threading.Event(), time.monotonic()
        with ThreadPoolExecutor(self._clients) as pool:
            names = [f"{self._waves}-{number}" for number in range(self._clients)]
            clients = [pool.submit(self._run_client, name, over) for name in names]
            try:
                yield
            finally:
                over.set()
        self.requests += sum(client.result() for client in clients)
        self.seconds += time.monotonic() - begun
        self._findings.jobs, self._findings.refused = self._drawn.taken, self._drawn.refused

    def is_answered(self) -> bool:
        """Whether all drawn jobs are taken, and show what the operator makes of them."""
        return self._drawn.is_complete() and not self._late()

    def await_judgement(self) -> None:
        """Wait until each drawn job shows what the operator makes of it, and note what is wrong.
        What the others are like when the clients stop is a matter of chance.
        """
        deadline = time.monotonic() + STATUS_SECONDS
        while (late := self._late()) and time.monotonic() < deadline:
            time.sleep(1.0)
        self._findings.silent += [json.dumps(job["spec"])[:MOST_CHARACTERS] for job in late]
        for job in self._drawn_jobs():
            self._note(job)

    def delete_all(self) -> None:
        """Delete the jobs, then what was made for them."""
        namespace = self._namespace
        for path in (namespace.jobs(), *(made.format(namespace.name) for made in MADE)):
            answer = namespace.api.request("DELETE", path, DELETE_NOW)
            assert answer.status == 200, answer.message

    def _run_client(self, name: str, over: threading.Event) -> int:
        with Api.kept(self._namespace.api.kubeconfig) as api:
            namespace = Namespace(api, self._namespace.name)
            client = HostileClient(namespace, self._user, self._drawn, name)
            client.run(over)
            return client.requests

    def _late(self) -> list[Json]:
        return [job for job in self._drawn_jobs() if not is_judged(job)]

    def _drawn_jobs(self) -> Iterator[Json]:
        return (job for job in self._jobs() if job["metadata"]["name"].startswith(DRAWN))

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
        self._findings.reasons[ready(job).get("reason", "of another controller")] += 1
        if message := unnamed_refusal(job):
            self._findings.unnamed.append(message)
        if answer := refusal(job):
            self._findings.note_refusal(answer, job["spec"])
