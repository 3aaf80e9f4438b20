"""What the hostile tenant of a fuzz has judged, and what it leaves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from bench.fuzz.findings import Findings
from bench.fuzz.hostile_tenant import DELETED, HostileTenant
from bench.fuzz.size import FuzzSize
from regroup_operator.observe.bounded_json import UndecodableError
from tests.support.kube_api import Answer, Api, Json, Namespace

JUDGED: Json = {"conditions": [{"type": "Ready", "message": "the coordinator's pod waits"}]}


class Server:
    """An API server that deletes as many as are asked for, and whose first answer about it is too
    large.
    """

    def __init__(self) -> None:
        self.pods = 0
        self.jobs: dict[str, Json] = {}
        self.asked: defaultdict[str, int] = defaultdict(int)
        """Job -> how often it was asked for."""
        self.deletions = 0

    def request(self, method: str, path: str, _body: Any = None, **_: Any) -> Answer:
        name = path.rpartition("/")[2]
        if method == "DELETE":
            assert name == f"pods?limit={DELETED}"
            self.pods = max(0, self.pods - DELETED)
            self.deletions += 1
            if self.deletions == 1:
                raise UndecodableError("it has more than 4 MiB")
            return Answer(200, {})
        if method == "GET" and name in self.jobs:
            self.asked[name] += 1
            return Answer(200, self.jobs[name])
        if method == "GET" and "limit" not in name:
            return Answer(404, {})
        items: list[Json] = [{}] if self.pods and name == "pods?limit=1" else []
        status = 201 if method == "POST" else 200
        return Answer(status, {"status": {"allowed": True}, "items": items})


def make_tenant(server: Server) -> HostileTenant:
    size = FuzzSize(seed=1, jobs=1, templates=0, samples=1)
    return HostileTenant(Namespace(cast("Api", server), "team"), size, Findings())


def test_what_a_wave_has_left_is_deleted_in_parts_whatever_the_answers_are_like() -> None:
    server = Server()
    tenant = make_tenant(server)
    server.pods = 2 * DELETED + 1
    tenant.delete_all()
    assert (server.pods, server.deletions) == (0, 3)


def test_each_job_is_asked_for_until_it_is_judged_or_gone_and_then_no_more() -> None:
    server = Server()
    tenant = make_tenant(server)
    tenant._drawn.taken += ["job-1", "job-2", "job-3"]
    server.jobs = {"job-1": {"spec": {}, "status": JUDGED}, "job-3": {"spec": {}}}
    assert not tenant.is_answered()
    server.jobs["job-3"]["status"] = JUDGED
    assert tenant.is_answered()
    assert tenant.is_answered()
    assert server.asked == {"job-1": 1, "job-3": 2}
