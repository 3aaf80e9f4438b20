"""A watch of the benchmark goes on where the API server has ended it."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from bench.operators.client import Client, Json, RefusedError
from devcluster.pki import Authority, Identity
from regroup_trainer.system.machine_address import free_port

GONE = {"type": "ERROR", "object": {"code": 410}}


def added(version: str) -> Json:
    return {"type": "ADDED", "object": {"metadata": {"resourceVersion": version}}}


async def watched(folder: Path, answers: Sequence[Sequence[Json]]) -> tuple[list[str], list[str]]:
    """The versions that a watch shows until it is gone, and those that it asked for."""
    authority, asked, left = Authority(folder), list[str](), list(answers)
    authority.create()
    for identity in (Identity("server", "server", hosts=("127.0.0.1",)), Identity("admin", "me")):
        authority.issue(identity)

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.query.get("resourceVersion", ""))
        return web.Response(text="".join(f"{json.dumps(event)}\n" for event in left.pop(0)))

    application = web.Application()
    application.router.add_get("/pods", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.crt("server"), authority.key("server"))
    port, shown = free_port(), list[str]()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        async with Client(f"https://127.0.0.1:{port}", authority) as client:
            with contextlib.suppress(RefusedError):
                async for event in client.watch("/pods"):
                    shown.append(event["object"]["metadata"]["resourceVersion"])
    finally:
        await runner.cleanup()
    return shown, asked


async def test_it_begins_again_behind_the_last_event_and_says_when_that_is_gone(
    tmp_path: Path,
) -> None:
    answers = [[added("7"), added("9")], [], [added("12")], [GONE]]
    assert await watched(tmp_path, answers) == (["7", "9", "12"], ["", "9", "9", "12"])
