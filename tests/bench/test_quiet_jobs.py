"""What the ordinary tenant of a fuzz asks the API server for."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from typing import Any, cast

from bench.fuzz.quiet_jobs import PODS, QuietJobs
from tests.support.kube_api import Answer, Api, Json, Namespace

ACCOUNT = "system:serviceaccount:team:default"


class Events:
    """A watch that reports what it is given."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Json | None] = queue.Queue()

    def report(self, kind: str, pod: str) -> None:
        self._waiting.put({"type": kind, "object": {"metadata": {"name": pod}}})

    def close(self) -> None:
        self._waiting.put(None)

    def __iter__(self) -> Iterator[Json]:
        return iter(self._waiting.get, None)


class Server:
    """An API server and an operator that acts at once. It is busy when the first job is made."""

    def __init__(self) -> None:
        self.events = Events()
        self.sent: list[tuple[str, str, str]] = []
        """Method, what follows the last slash of the path, and who asks."""

    def watch(self, _path: str) -> Events:
        return self.events

    def request(self, method: str, path: str, body: Json, user: str = "", **_: Any) -> Answer:
        what = path.rpartition("/")[2]
        self.sent.append((method, what, user))
        if (method, what) == ("POST", "trainingjobs"):
            if self.sent.count(self.sent[-1]) == 1:
                return Answer(429, {}, {"Retry-After": "0"})
            for pod in PODS:
                self.events.report("ADDED", f"{body['metadata']['name']}-{pod}")
        elif what == "quiet-1-w1-1":
            self.events.report("DELETED", what)
            self.events.report("ADDED", "quiet-1-w1-2")
        return Answer(201 if method == "POST" else 200, {"status": {"allowed": True}})


def test_what_is_measured_waits_its_turn_at_the_api_server_as_requests_of_users_do() -> None:
    server = Server()
    tenant = QuietJobs(Namespace(cast("Api", server), "team"))
    made = len(server.sent)
    with contextlib.closing(tenant):
        samples = tenant.sample(lambda count: count >= 2)
    assert len(samples) == 2
    assert server.sent[made:] == [
        ("POST", "trainingjobs", ACCOUNT),
        ("POST", "trainingjobs", ACCOUNT),
        ("DELETE", "quiet-1-w1-1", ACCOUNT),
        ("DELETE", "quiet-1", ACCOUNT),
        ("DELETE", "job=quiet-1", ACCOUNT),
    ]
