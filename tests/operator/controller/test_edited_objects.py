"""What somebody has edited of a job's Service, policy and budget is put right, once."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.controller import handlers
from regroup_operator.controller.handlers import Operator
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.system.machine_address import free_port
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.operator_simulation import make_spec
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import until

Json = dict[str, Any]
PORT = {"name": "status", "port": 80, "targetPort": 80, "protocol": "TCP"}
UDP = {**PORT, "port": COORDINATOR_PORT, "targetPort": COORDINATOR_PORT, "protocol": "UDP"}
EDITS: dict[str, tuple[str, Json]] = {
    "a policy that lets nobody in": ("networkpolicies", {"ingress": None}),
    "a policy that judges egress too": (
        "networkpolicies",
        {"policyTypes": ["Ingress", "Egress"], "egress": [{}]},
    ),
    "a Service that selects nothing": ("services", {"selector": None}),
    "a Service that selects other pods": ("services", {"selector": {"app": "other"}}),
    "a Service that selects fewer pods": ("services", {"selector+": {"app": "other"}}),
    "a Service of another port": ("services", {"ports": [PORT]}),
    "a Service of another protocol": ("services", {"ports": [UDP]}),
    "a Service within each node": ("services", {"internalTrafficPolicy": "Local"}),
    "a budget of other pods": (
        "poddisruptionbudgets",
        {"selector": {"matchLabels": {"app": "other"}}},
    ),
    "a budget that counts otherwise": (
        "poddisruptionbudgets",
        {"minAvailable": None, "maxUnavailable": 0},
    ),
}


def edited(spec: Json, changes: Json) -> Json:
    """The spec with other fields; None removes one, and `+` adds to one."""
    more = {name[:-1]: {**spec[name[:-1]], **v} for name, v in changes.items() if name[-1] == "+"}
    others = {name: value for name, value in changes.items() if name[-1] != "+"}
    return {k: v for k, v in {**spec, **others, **more}.items() if v is not None}


def found(api: FakeClusterApi, resource: str) -> Json:
    (document,) = api.all(resource)
    return document


async def start(api: FakeClusterApi) -> None:
    """Let the pods of the job run."""
    await until("four pods", lambda: len(api.all("pods")) == 4)
    for pod in api.all("pods"):
        await api.store("pods", {**pod, "status": {"phase": "Running"}})
    await until("a budget", lambda: bool(api.all("poddisruptionbudgets")))


@pytest.mark.parametrize("edit", EDITS)
async def test_what_is_edited_is_put_right_once(monkeypatch: pytest.MonkeyPatch, edit: str) -> None:
    resource, changes = EDITS[edit]
    async with FakeClusterApi() as api:
        monkeypatch.setattr(handlers, "login", api.login)
        await api.store_job(make_spec())
        operator = Operator(SETTINGS.model_copy(update={"health_port": free_port()}), KEYS)
        await operator.start(may_watch_nodes=True)
        await start(api)
        former = found(api, resource)
        await api.store(resource, {**former, "spec": edited(former["spec"], changes)})
        assert found(api, resource)["spec"] != former["spec"]
        await api.store("trainingjobs", {**found(api, "trainingjobs")})  # news of the job: a round
        await until("the spec", lambda: found(api, resource)["spec"] == former["spec"])
        writes = api.requests[f"patch {resource}"]
        await api.store("trainingjobs", {**found(api, "trainingjobs")})
        await until("a round", lambda: not len(operator.queue) and not operator.queue._working)
        await operator.stop()
        assert api.requests[f"patch {resource}"] == writes
        assert found(api, resource)["metadata"]["uid"] == former["metadata"]["uid"]
        assert [name for name in api.created["pods"] if "-c" in name] == ["gpt-c1"]
