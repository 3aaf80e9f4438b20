"""A tenant that is as hostile as it can, and what the operator makes of its jobs."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from bench.fuzz.findings import MOST_CHARACTERS, Findings
from bench.fuzz.hostile_client import (
    BUSY,
    DELETE_NOW,
    DRAWN,
    GIVEN_UP,
    RIGHTS,
    DrawnJobs,
    HostileClient,
)
from bench.fuzz.judgement import is_judged, ready, refusal, unnamed_refusal
from bench.fuzz.size import FuzzSize
from regroup_operator.observe.bounded_json import UndecodableError
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import make_claim
from tests.support.user_rights import grant

STATUS_SECONDS = 90.0
"""How long the operator may take until a job shows what it makes of it."""
DELETION_SECONDS = 600.0
"""How long the API server may take to delete all that a wave has left: ten thousand pods."""
DELETED = 200
"""Objects that are deleted at a time."""
PAGE = 10
"""Jobs that are read at a time: an answer has 4 MiB at most, and a job may be large."""
MADE = (
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/secrets",
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "/api/v1/namespaces/{}/pods",
)
"""Paths of what the operator makes for jobs. It may be about to make pods when their job goes."""


class HostileTenant:
    """The clients of one namespace. In each wave they create so many drawn jobs, and change and
    delete others of their own.
    """

    def __init__(self, namespace: Namespace, size: FuzzSize, findings: Findings) -> None:
        """`namespace` is reached as an administrator, to judge and to clean up."""
        make_claim(namespace)
        self._namespace = namespace
        self._user = f"system:serviceaccount:{namespace.name}:default"
        grant(namespace, self._user, RIGHTS)
        self._drawn = DrawnJobs(size.seed, size.workers)
        self._size = size
        self._findings = findings
        self._waves = 0
        self._judged = 0
        """Of the drawn jobs that were taken, in their order."""
        self.requests = 0
        self.seconds = 0.0
        """Of all waves, in which it sent these requests."""

    @contextlib.contextmanager
    def at_work(self, count: int) -> Iterator[None]:
        """Inside, its clients send one request after the other, until `count` more drawn jobs are
        taken and beyond. Raises the error of a client.
        """
        self._waves += 1
        self._drawn.want(count)
        over, begun = threading.Event(), time.monotonic()
        with ThreadPoolExecutor(self._size.clients) as pool:
            numbers = range(self._size.clients)
            clients = [pool.submit(self._run_client, number, over) for number in numbers]
            try:
                yield
            finally:
                over.set()
        self.requests += sum(client.result() for client in clients)
        self.seconds += time.monotonic() - begun
        self._findings.jobs, self._findings.refused = len(self._drawn.taken), self._drawn.refused

    def is_answered(self) -> bool:
        """Whether all drawn jobs are taken, and show what the operator makes of them."""
        return self._drawn.is_complete() and self._are_judged()

    def await_judgement(self) -> None:
        """Wait until each drawn job shows what the operator makes of it, and note what is wrong.
        What the others are like when the clients stop is a matter of chance.
        """
        deadline = time.monotonic() + STATUS_SECONDS
        while not self._are_judged() and time.monotonic() < deadline:
            time.sleep(1.0)
        for job in self._drawn_jobs():
            self._note(job)

    def delete_all(self) -> None:
        """Delete the jobs, then what was made for them. Raises TimeoutError."""
        deadline = time.monotonic() + DELETION_SECONDS
        for path in (self._namespace.jobs(), *(one.format(self._namespace.name) for one in MADE)):
            while self._has_any(path):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} still has objects after {DELETION_SECONDS:g} s")
                self._delete_some(path)

    def _has_any(self, path: str) -> bool:
        answer = self._namespace.api.request("GET", f"{path}?limit=1")
        assert answer.status == HTTPStatus.OK, answer.message
        return bool(answer.body["items"])

    def _delete_some(self, path: str) -> None:
        """A request may take a minute at most, and answers with all that it deletes."""
        with contextlib.suppress(OSError, UndecodableError):
            answer = self._namespace.api.request("DELETE", f"{path}?limit={DELETED}", DELETE_NOW)
            assert answer.status in (HTTPStatus.OK, GIVEN_UP, *BUSY), answer.message

    def _run_client(self, number: int, over: threading.Event) -> int:
        """One of them has a job that loses workers."""
        with Api.kept(self._namespace.api.kubeconfig) as api:
            namespace, name = Namespace(api, self._namespace.name), f"{self._waves}-{number}"
            workers = 0 if number else self._size.workers
            client = HostileClient(namespace, self._user, self._drawn, name, workers)
            client.run(over)
            return client.requests

    def _are_judged(self) -> bool:
        """Whether all that are taken show what the operator makes of them. Asks about each until it
        does, and then no more: there may be a thousand.
        """
        while self._judged < len(self._drawn.taken):
            path = self._namespace.jobs(self._drawn.taken[self._judged])
            answer = self._namespace.api.request("GET", path)
            assert answer.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND), answer.message
            if answer.status == HTTPStatus.OK and not is_judged(answer.body):
                return False
            self._judged += 1
        return True

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
        if not is_judged(job):
            self._findings.silent.append(json.dumps(job["spec"])[:MOST_CHARACTERS])
        self._findings.reasons[ready(job).get("reason", "of another controller")] += 1
        if message := unnamed_refusal(job):
            self._findings.unnamed.append(message)
        if answer := refusal(job):
            self._findings.note_refusal(answer, job["spec"])
