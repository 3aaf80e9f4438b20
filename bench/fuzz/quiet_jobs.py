"""An ordinary tenant beside hostile ones: how soon does the operator act on what happens to its
jobs?

It has an account of its namespace, as the hostile one has, so that its requests wait their turn at
the API server. Half of the samples begin when it asks for a job. All other moments are those at
which one watch reports them: an administrator's, which only measures.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from regroup_operator.api.resource import API_VERSION, KIND, PLURAL
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import make_claim
from tests.support.specs import SMALLEST
from tests.support.user_rights import Right, grant

RIGHTS = (
    *(Right(verb, PLURAL) for verb in ("create", "delete")),
    *(Right(verb, "pods") for verb in ("delete", "deletecollection")),
)
ACTION_SECONDS = 60.0
"""How long an action of the operator is waited for."""
PODS = ("c1", "w0-1", "w1-1", "w2-1")
DELETE_NOW = {"gracePeriodSeconds": 0}
BUSY = HTTPStatus.TOO_MANY_REQUESTS


class NamespaceWatch:
    """When this process received the first event of each kind about each pod of a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._times: dict[tuple[str, str], float] = {}
        self._news = threading.Condition()
        self._watch = namespace.api.watch(namespace.core("pods"))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, kind: str, pod: str) -> float:
        """The time (monotonic) of an event. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: (kind, pod) in self._times, ACTION_SECONDS):
                raise TimeoutError(f"pod {pod} was not {kind} within {ACTION_SECONDS:g} s")
            return self._times[kind, pod]

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
        self._reader.join()

    def _read(self) -> None:
        for event in self._watch:
            with self._news:
                seen = (event["type"], event["object"]["metadata"]["name"])
                self._times.setdefault(seen, time.monotonic())
                self._news.notify_all()


class QuietJobs:
    """Jobs of one namespace, one after the other."""

    def __init__(self, namespace: Namespace) -> None:
        """`namespace` is reached as an administrator, who gives the tenant its rights."""
        make_claim(namespace)
        self._namespace = namespace
        self._user = f"system:serviceaccount:{namespace.name}:default"
        grant(namespace, self._user, RIGHTS)
        self._watch = NamespaceWatch(namespace)
        self._numbers = itertools.count(1)

    def sample(self, enough: Callable[[int], bool]) -> list[float]:
        """Milliseconds from events to actions, until `enough` is true of their count. Raises
        TimeoutError for an action that does not come.
        """
        found: list[float] = []
        while not enough(len(found)):
            found += self._live_and_die(f"quiet-{next(self._numbers)}")
        return found

    def close(self) -> None:
        """End what watches them."""
        self._watch.close()

    def _live_and_die(self, job: str) -> list[float]:
        """A job is created: its first pod is. A worker is deleted, once all are there: its
        successor is created.
        """
        created = time.monotonic()
        named = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": job}}
        self._send("POST", self._namespace.jobs(), {**named, "spec": SMALLEST})
        first = self._watch.wait_for("ADDED", f"{job}-c1")
        for pod in PODS:
            self._watch.wait_for("ADDED", f"{job}-{pod}")
        self._delete(self._namespace.core(f"pods/{job}-w1-1"))
        lost = self._watch.wait_for("DELETED", f"{job}-w1-1")
        replaced = self._watch.wait_for("ADDED", f"{job}-w1-2")
        self._delete(self._namespace.jobs(job))
        self._delete(self._namespace.core(f"pods?labelSelector=regroup.dev/job={job}"))
        return [1e3 * (first - created), 1e3 * (replaced - lost)]

    def _delete(self, path: str) -> None:
        self._send("DELETE", path, DELETE_NOW)

    def _send(self, method: str, path: str, body: Json) -> None:
        """Send a request, again when the API server asks it to come back. Raises TimeoutError
        when it does so for too long.
        """
        deadline, api = time.monotonic() + ACTION_SECONDS, self._namespace.api
        while (answer := api.request(method, path, body, user=self._user)).status == BUSY:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path}: {answer.message} ({ACTION_SECONDS:g} s)")
            time.sleep(float(answer.headers.get("Retry-After", 1)))
        assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), answer.message
