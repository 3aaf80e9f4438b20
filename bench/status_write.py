"""What a write of a TrainingJob's status costs the API server, in milliseconds of its processor.

    make bench NAME=status_write [ARGS=--quick]

One job, whose status is written again and again, one write after another, on an API server of its
own. `shipped` is our definition; `without-rules` has none of the rules that the API server
evaluates at each write of an object, and `with-owners` has it note who wrote each field of a
status, as it does where a definition does not say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bench.harness import Plan, Values, command
from bench.operators.client import Client, Json, documents
from bench.operators.subjects import ROOT, apply_definitions
from devcluster.apiserver import ApiServer
from devcluster.processes import cpu_seconds
from regroup_operator.api.status import TrainingJobStatus

CASES, QUICK_CASES = ("250",), ("5",)
"""Writes."""
UNITS = {"api_server_ms": "ms"}
PATH = "/apis/regroup.dev/v1alpha1/namespaces/default/trainingjobs"


def _without_rules(schema: Json) -> None:
    del schema["x-kubernetes-validations"]


def _with_owners(schema: Json) -> None:
    del schema["properties"]["status"]["x-kubernetes-map-type"]


SUBJECTS: Mapping[str, Callable[[Json], None]] = {
    "shipped": lambda _schema: None,
    "without-rules": _without_rules,
    "with-owners": _with_owners,
}
"""Name -> what it changes in the definition's schema."""


def plan(quick: bool) -> Plan:
    """Three runs; a quick one has a few writes."""
    cases = QUICK_CASES if quick else CASES
    return Plan("status_write", cases, tuple(SUBJECTS), UNITS, 1 if quick else 3)


def measure(case: str, subject: str) -> Values:
    """One run."""
    with ApiServer() as server:
        client = Client(server.url, server.endpoint.authority)
        pid = server.pid("kube-apiserver")
        return asyncio.run(_measure(client, pid, int(case), definition(subject)))


def definition(subject: str) -> Json:
    """The CustomResourceDefinition that it has."""
    (found,) = documents(ROOT / "manifests/crd.yaml")
    SUBJECTS[subject](found["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return found


async def _measure(client: Client, pid: int, writes: int, defined: Json) -> Values:
    (job,) = documents(ROOT / "manifests/samples/smallest.yaml")
    async with client:
        await apply_definitions(client, [defined])
        made = await client.request("POST", PATH, job)
        where = f"{PATH}/{made['metadata']['name']}/status"
        for number in range(-20, 0):  # until all of it is loaded
            made = await client.request("PUT", where, _with_status(made, number))
        begun = cpu_seconds(pid)
        for number in range(writes):
            made = await client.request("PUT", where, _with_status(made, number))
        return {"api_server_ms": 1000 * (cpu_seconds(pid) - begun) / writes}


def _with_status(job: Json, step: int) -> Json:
    status = TrainingJobStatus(phase="Running", message=f"training, step {step}")
    return {**job, "status": status.model_dump(by_alias=True, mode="json", exclude_none=True)}


main = command(plan, measure)

if __name__ == "__main__":
    main()
