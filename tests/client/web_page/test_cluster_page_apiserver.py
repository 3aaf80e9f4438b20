"""`kubectl trainingjob ui` on a real API server, as its user may read it."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from regroup_operator.api.names import labels
from regroup_trainer.protocol.job_status import Series, SeriesPoint
from tests.support.cluster_objects import event_object, running_status
from tests.support.kube_api import ROOT, Api, Json, Namespace, install_definition
from tests.support.opened_page import OpenedPage
from tests.support.played_kubelet import SUCCESS, Played, played_node
from tests.support.specs import SMALLEST
from tests.support.user_rights import Right, grant, named_in, needed_by

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]
PROGRAM = Path(sys.executable).parent / "kubectl-trainingjob"
PAGE = ROOT / "docs/tasks/web-page.md"
MANY = 1000
ROUND_SECONDS = 30.0
"""For a list of so many jobs, of which a page of a quiet machine takes one or two."""
_numbers = itertools.count(1)


def play(pod: str, words: Sequence[str]) -> Played:
    """What the pods of the node do."""
    if words[0] == "GET":
        text = Series(points=(SeriesPoint(time=1.0, step=7, world_size=3, loss=0.5),))
        body = text.model_dump_json()
        return f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}", "", SUCCESS
    saved = [{"step": step, "path": f"/data/step-{step}"} for step in (100, 50)]
    return json.dumps(saved), "", SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server, played_node(server, "n1", play):
        install_definition(Api(server.kubeconfig))
        yield server


@pytest.fixture(scope="module")
def team(server: ApiServer) -> Namespace:
    """A namespace with a job that trains."""
    made = Namespace.make(Api(server.kubeconfig), "pages")
    assert made.create(SMALLEST).status == 201
    assert made.write_status(running_status()).status == 200
    event = event_object("WorkerLost", "worker gpt-w1-1 is lost")
    event["metadata"] = {"name": "gpt.1"}
    event["involvedObject"]["namespace"] = made.name
    assert made.api.request("POST", made.core("events"), event).status == 201
    for name, role in (("gpt-c1", "coordinator"), ("gpt-w0-1", "worker")):
        command = ["python", "-m", "regroup_trainer.agent"]
        pod: Json = {
            "metadata": {"name": name, "labels": labels("gpt", role)},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "image": "x", "command": command}],
            },
        }
        created = made.api.request("POST", made.core("pods"), pod)
        assert created.status == 201, created.message
        written = {**created.body, "status": {"phase": "Running"}}
        assert made.api.request("PUT", made.core(f"pods/{name}/status"), written).status == 200
    return made


@contextmanager
def page(kubeconfig: Path, *options: str) -> Iterator[OpenedPage]:
    """The page of the command."""
    words = [str(PROGRAM), "ui", "--no-browser", "--kubeconfig", str(kubeconfig), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield OpenedPage(line[line.index("http") :].strip())
        finally:
            process.terminate()


def test_the_jobs_of_a_namespace_and_one_of_them(team: Namespace) -> None:
    with page(team.api.kubeconfig, "-n", team.name) as shown:
        (job,) = shown.read("/api/jobs")["jobs"]
        assert (job["id"], job["phase"], job["step"]) == (f"{team.name}/gpt", "Running", 120)
        where = f"?id={quote(job['id'])}"
        details = shown.read(f"/api/job{where}")
        assert len(details["workerRows"]) == 3
        assert [one["generation"] for one in details["timeline"]["recoveries"]] == ["1.2", "1.3"]
        parts = ("job", "series", "checkpoints")
        with ThreadPoolExecutor() as tabs:  # as the page asks: at the same time
            answers = tabs.map(lambda part: shown.read(f"/api/{part}{where}"), 2 * parts)
            found = dict(zip(2 * parts, answers, strict=True))
        assert found["series"]["loss"] == [0.5]
        assert [one["step"] for one in found["checkpoints"]["checkpoints"]] == [100, 50]


@pytest.mark.long
def test_a_thousand_jobs_of_a_cluster_are_listed_page_by_page(server: ApiServer) -> None:
    """Each with the status of a job that trains. What was read serves the next page as well."""
    names = [f"job-{number:04}" for number in range(MANY)]
    with Api.kept(server.kubeconfig) as api:
        many = Namespace.make(api, "many")
        for name in names:
            body = {**many.create(SMALLEST, name).body, "status": running_status()}
            assert api.request("PUT", f"{many.jobs(name)}/status", body).status == 200
    with page(server.kubeconfig, "-n", many.name) as shown:
        begun = time.monotonic()
        first = shown.read("/api/jobs")
        assert time.monotonic() - begun < ROUND_SECONDS
        last = shown.read(f"/api/jobs?start={MANY - 100}")
        found = shown.read("/api/jobs?text=job-0500")
    assert (first["total"], len(first["jobs"])) == (MANY, 100)
    listed = {job["name"] for answer in (first, last) for job in answer["jobs"]}
    assert len(listed) == 200 and listed <= set(names)
    assert [job["name"] for job in found["jobs"]] == ["job-0500"]
    assert all(job["step"] == 120 for job in first["jobs"])


def test_a_user_sees_no_more_than_by_kubectl(server: ApiServer, team: Namespace) -> None:
    nobody = server.kubeconfig_of(Identity("nobody", "nobody"))
    with page(nobody, "-n", team.name) as shown:
        for path in ("/api/jobs", f"/api/job?id={team.name}/gpt"):
            with pytest.raises(HTTPError) as refused:
                shown.read(path)
            assert refused.value.code == 502
            assert "cannot" in refused.value.read().decode()
            refused.value.close()


def read_as(server: ApiServer, team: Namespace, rights: list[Right], path: str) -> Any:
    """What a page of a new user with these rights is answered."""
    user = f"user-{next(_numbers)}"
    grant(team, user, rights)
    with page(server.kubeconfig_of(Identity(user, user)), "-n", team.name) as shown:
        return shown.read(path)


def test_the_right_that_the_verb_needs_is_enough_for_the_list(
    server: ApiServer, team: Namespace
) -> None:
    (job,) = read_as(server, team, needed_by("ui"), "/api/jobs")["jobs"]
    assert job["phase"] == "Running"


PARTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "events": ("job", lambda job: [one["reason"] for one in job["events"]] == ["WorkerLost"]),
    "logs": ("logs", lambda logs: "step-100" in str(logs)),
    "loss, steps of workers": ("series", lambda series: bool(series["loss"] == [0.5])),
    "all checkpoints": ("checkpoints", lambda found: len(found["checkpoints"]) == 2),
}
"""Row of the page's table of rights -> what the page reads, and whether it is all there."""


def look(server: ApiServer, team: Namespace, rights: list[Right], part: str) -> tuple[bool, str]:
    """Whether a user with these rights sees a part as it is, and what refuses it."""
    path, is_whole = PARTS[part]
    where = f"/api/{path}?id={quote(f'{team.name}/gpt')}"
    try:
        return is_whole(read_as(server, team, rights, where)), ""
    except HTTPError as refused:
        with refused:
            return False, refused.read().decode()


@pytest.mark.parametrize("part", PARTS)
def test_the_rights_that_the_page_names_for_a_part_are_enough_and_all_needed(
    server: ApiServer, team: Namespace, part: str
) -> None:
    (cell,) = re.findall(rf"^\| {part} \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    (jobs,) = re.findall(r"^\| jobs, .+? \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    rights = named_in(cell)
    assert look(server, team, [*named_in(jobs), *rights], part) == (True, "")
    for lacking in rights:
        others = [*named_in(jobs), *(one for one in rights if one != lacking)]
        whole, refusal = look(server, team, others, part)
        assert not whole, lacking
        assert not refusal or lacking.resource in refusal, refusal
