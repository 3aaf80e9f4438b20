"""The operator's start."""

from __future__ import annotations

import asyncio
import base64
import socket
from typing import Any

import aiohttp
import kopf
import pytest

from regroup_operator.controller import operator_process
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.operator_process import find_basis
from regroup_operator.errors import ClusterError
from regroup_trainer.system.machine_address import free_port
from tests.support.rendering import SETTINGS
from tests.support.waiting import until

PLACE = "regroup-system/regroup-key"


class Server(Cluster):
    """An API server that gives one answer after the other, and has the key."""

    def __init__(self, *answers: bool | int) -> None:
        self.answers = list(answers)
        """Whether a right is ours, or an HTTP status; 0: no answer at all."""

    async def secret(self, *_: Any) -> dict[str, Any]:
        return {"data": {"key": base64.b64encode(b"0123456789abcdef").decode()}}

    async def may(self, *_: Any, **__: Any) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, bool):
            return answer
        raise ClusterError("POST", "/apis/authorization.k8s.io/v1", answer, "no answer")


@pytest.mark.parametrize(
    ("answers", "may"), [((True, True), True), ((True, False), False), ((False,), False)]
)
async def test_both_nodes_and_their_leases_must_be_ours_to_read(
    answers: tuple[bool, ...], may: bool
) -> None:
    assert (await find_basis(Server(*answers), PLACE)).may_watch_nodes is may


async def test_a_start_waits_for_an_api_server_that_is_away_or_overloaded() -> None:
    server = Server(0, 503, True, 429, True, True)
    assert (await find_basis(server, PLACE, pause=0)).may_watch_nodes is True
    assert server.answers == []


def _listens(address: tuple[str, int]) -> bool:
    with socket.socket() as client:
        return client.connect_ex(address) == 0


async def test_a_start_that_waits_for_an_api_server_is_alive_and_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS.model_copy(update={"health_port": free_port()})
    nobody = kopf.ConnectionInfo(server=f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(operator_process, "login", lambda: nobody)
    asking = asyncio.create_task(operator_process.ask(settings))

    async def status(path: str) -> int:
        url = f"http://127.0.0.1:{settings.health_port}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status

    try:
        address = ("127.0.0.1", settings.health_port)
        await until("a server", lambda: _listens(address))
        assert [await status("livez"), await status("healthz")] == [200, 503]
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_refusal_is_an_error_at_once() -> None:
    with pytest.raises(ClusterError):
        await find_basis(Server(401), PLACE, pause=0)
