"""The drawn templates whose pods a fuzz sends as dry runs."""

from __future__ import annotations

import json
from typing import cast

from bench.fuzz.drawn_templates import DrawnTemplates
from bench.fuzz.findings import Findings
from regroup_operator.api import names
from tests.support.kube_api import Answer, Api, Json

COUNT = 60


class TakesAll:
    """An API server that takes each pod, and notes it."""

    def __init__(self) -> None:
        self.pods: list[str] = []

    def request(self, _method: str, path: str, body: Json | str) -> Answer:
        if path.endswith("pods?dryRun=All"):
            self.pods.append(str(body))
        return Answer(201, {})


def test_pods_of_both_launchers_are_sent_once_each() -> None:
    server, findings = TakesAll(), Findings()
    DrawnTemplates(cast("Api", server), findings).judge(seed=19, count=COUNT)
    assert findings.templates == COUNT
    assert findings.dry_runs == len(server.pods) == len(set(server.pods))
    labels = [json.loads(pod)["metadata"]["labels"] for pod in server.pods]
    roles = {one[names.ROLE] for one in labels}
    assert roles == {names.COORDINATOR, names.WORKER, names.STORE}
    assert [one for one in labels if one[names.ROLE] == names.WORKER and names.TERM in one]
    assert (findings.errors, findings.unnamed) == ([], [])
