"""One of the clients of the hostile tenant: it creates, changes and deletes jobs without a pause.

It is as fast as the API server's answers, and waits its turn there as other users do: it has an
account of its namespace, which priority and fairness hold for, as for all but administrators.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from random import Random

from regroup_operator.api.resource import API_VERSION, KIND, PLURAL
from regroup_operator.observe.bounded_json import UndecodableError
from tests.support.hostile_specs import draw_job
from tests.support.kube_api import Answer, Namespace
from tests.support.large_specs import draw_large, draw_too_large, draw_wide, make_wide
from tests.support.specs import SMALLEST
from tests.support.user_rights import Right

RIGHTS = (
    *(Right(verb, PLURAL) for verb in ("create", "patch", "delete")),
    Right("deletecollection", "pods"),
)
DRAWN, CHANGING = "job-", "changing-"
"""How the names of jobs begin: of those that stay as they were drawn, and of those that do not."""
JOBS = 5
"""That a client changes and deletes, at a time: beside the drawn ones it has no more."""
MERGE = "application/merge-patch+json"
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
GIVEN_UP = HTTPStatus.GATEWAY_TIMEOUT
"""The API server's answer after half a minute. It may be at the request still, so that sending it
again adds to what it has to do.
"""
DELETE_NOW = {"gracePeriodSeconds": 0}


class DrawnJobs:
    """Drawn specs, until the API server has taken as many as are wanted. Equal seeds draw equal
    ones, whichever client gets them. For several threads.
    """

    def __init__(self, seed: int, workers: int) -> None:
        """`workers`: of the jobs that have most."""
        self._random = Random(seed)
        self._random_extremes = Random(f"extremes of {seed}")
        self._workers = workers
        self._extremes: list[str] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open = 0
        self._awaited = 0
        self.taken: list[str] = []
        """Names."""
        self.refused = 0

    def want(self, count: int) -> None:
        """So many more are to be taken, from now on. Some that are as large as can be come first:
        few, since one of them makes as many pods as hundreds of others.
        """
        random = self._random_extremes
        wide = [draw_wide(random, self._workers) for _ in range(2)]
        large = [*(draw_large(random) for _ in range(2)), draw_too_large(random)]
        with self._lock:
            self._open = count
            self._extremes = list(map(json.dumps, (*wide, *large)))

    def draw(self) -> tuple[str, str] | None:
        """Name and JSON of the next; None while there are as many as are wanted."""
        with self._lock:
            if not self._open:
                return None
            self._open -= 1
            self._awaited += 1
            spec = self._extremes.pop(0) if self._extremes else draw_job(self._random)
            return f"{DRAWN}{next(self._numbers)}", spec

    def note(self, name: str, status: int | None) -> None:
        """The API server's answer about one that was drawn; None: it is not known."""
        with self._lock:
            self._awaited -= 1
            self.taken += [name] if status == HTTPStatus.CREATED else []
            self.refused += status not in (HTTPStatus.CREATED, None)
            self._open += status != HTTPStatus.CREATED

    def is_complete(self) -> bool:
        """Whether all that are wanted are taken."""
        with self._lock:
            return not self._open and not self._awaited


class HostileClient:
    """Its requests, one after the other, for one thread."""

    def __init__(
        self, namespace: Namespace, user: str, drawn: DrawnJobs, name: str, workers: int = 0
    ) -> None:
        """`workers`: of a job that only loses workers, again and again; 0: it has none."""
        self._namespace, self._user, self._drawn = namespace, user, drawn
        self._random = Random(name)
        self._names = (f"{CHANGING}{name}-{number}" for number in itertools.count(1))
        self._own: list[str] = []
        self._wide, self._workers = f"{CHANGING}{name}-wide", workers
        self.requests = 0

    def run(self, over: threading.Event) -> None:
        """Work until it is over. What it has drawn and what it changes take turns."""
        if self._workers:
            self._create(self._wide, json.dumps(make_wide(self._workers)))
        while not over.is_set():
            if drawn := self._drawn.draw():
                name, spec = drawn
                answer = self._create(name, spec)
                self._drawn.note(name, answer.status if answer else None)
            if len(self._own) < JOBS:
                self._own.append(next(self._names))
                self._create(self._own[-1], json.dumps(SMALLEST))
            else:
                meddling = self._random.choice(self._MEDDLINGS)
                meddling(self, self._random.choice(self._own))

    def _create(self, name: str, spec: str) -> Answer | None:
        named = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
        body = f'{json.dumps(named)[:-1]}, "spec": {spec}}}'
        return self._send("POST", self._namespace.jobs(), body)

    def _scale(self, job: str) -> None:
        self._change(job, json.dumps({"spec": {"replicas": self._random.randint(1, 9)}}))

    def _suspend(self, job: str) -> None:
        self._change(job, json.dumps({"spec": {"suspend": self._random.random() < 0.5}}))

    def _annotate(self, job: str) -> None:
        noted = {"a": str(self._random.random())}
        self._change(job, json.dumps({"metadata": {"annotations": noted}}))

    def _redraw(self, job: str) -> None:
        self._change(job, f'{{"spec": {draw_job(self._random)}}}')

    def _fill(self, job: str) -> None:
        self._change(job, json.dumps({"spec": {"trainer": None, **draw_large(self._random)}}))

    def _lose_worker(self, job: str) -> None:
        if self._workers:
            job = self._wide
        index = self._random.randrange(self._workers or SMALLEST["replicas"])
        chosen = f"regroup.dev/job={job},regroup.dev/index={index}"
        path = self._namespace.core(f"pods?labelSelector={chosen}")
        self._send("DELETE", path, json.dumps(DELETE_NOW))

    def _delete_pods(self, job: str) -> None:
        path = self._namespace.core(f"pods?labelSelector=regroup.dev/job={job}")
        self._send("DELETE", path, json.dumps(DELETE_NOW))

    def _delete(self, job: str) -> None:
        """And its pods, as Kubernetes' garbage collector would: none runs here."""
        self._own.remove(job)
        self._send("DELETE", self._namespace.jobs(job))
        self._delete_pods(job)

    _MEDDLINGS: tuple[Callable[[HostileClient, str], None], ...] = (
        _scale,
        _suspend,
        _annotate,
        _redraw,
        _fill,
        _lose_worker,
        _delete_pods,
        _delete,
    )

    def _change(self, job: str, body: str) -> None:
        self._send("PATCH", self._namespace.jobs(job), body, MERGE)

    def _send(
        self, method: str, path: str, body: str | None = None, content: str = "application/json"
    ) -> Answer | None:
        """Send a request, again when the API server is busy. None: it is not known whether it has
        had its effect.
        """
        while True:
            self.requests += 1
            try:
                answer = self._namespace.api.request(method, path, body, content, user=self._user)
            except (OSError, HTTPException, UndecodableError):  # too much to do, or too large
                return None
            if answer.status == GIVEN_UP:
                return None
            if answer.status not in BUSY:
                assert answer.status != HTTPStatus.FORBIDDEN, answer.message
                return answer
