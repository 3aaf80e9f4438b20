"""A node whose kubelet runs the commands of `kubectl exec`, answers the requests that are forwarded
to ports, and has logs, as a function of the test says. An API server passes them on to it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from aiohttp import web

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from tests.support.kube_api import Api, Json

_AT_ONCE = 128
"""Commands that run beside each other: on a cluster, each pod has its own processor."""
PROTOCOL = "v4.channel.k8s.io"
_FRAME_BYTES = 2**15
"""As containerd has it."""
SUCCESS: Json = {"status": "Success"}
Played = tuple[str | bytes, str, Json]
"""Standard output, standard error, and the Status of the end."""
Command = Callable[[str, Sequence[str]], Played]
"""Pod, words of the command or request (of logs: `logs QUERY`) -> what it does. It runs in a
thread, and may wait.
"""


def exit_status(code: int) -> Json:
    """The Status of a command that ended with this code."""
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


@contextmanager
def played_node(server: ApiServer, name: str, run: Command) -> Iterator[None]:
    """Inside, the cluster has a node on which pods are what `run` says."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(_AT_ONCE))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_serve(server, run), loop).result(60)
    try:
        _add_node(Api(server.kubeconfig), name, runner.addresses[0][1])
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(runner: web.AppRunner) -> None:
    """Serve no more. TLS would wait for the API server's farewell, and nobody waits for that."""
    assert runner.server is not None
    for connection in runner.server.connections:
        if connection.transport is not None:
            connection.transport.abort()
    await runner.cleanup()


async def _serve(server: ApiServer, run: Command) -> web.AppRunner:
    authority = server.endpoint.authority
    authority.issue(Identity("kubelet", "system:node:played", hosts=("127.0.0.1",)))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.crt("kubelet"), authority.key("kubelet"))

    async def execute(request: web.Request) -> web.WebSocketResponse:
        channels = web.WebSocketResponse(protocols=[PROTOCOL])
        await channels.prepare(request)
        pod, words = request.match_info["pod"], request.query.getall("command")
        played = await asyncio.to_thread(run, pod, words)
        for channel, text in enumerate((*played[:2], json.dumps(played[2])), 1):
            content = text if isinstance(text, bytes) else text.encode()
            for begin in range(0, max(1, len(content)), _FRAME_BYTES):
                part = content[begin : begin + _FRAME_BYTES]
                await channels.send_bytes(bytes([channel]) + part)
        await channels.close()
        return channels

    async def forward(request: web.Request) -> web.WebSocketResponse:
        channels = web.WebSocketResponse(protocols=[PROTOCOL])
        await channels.prepare(request)
        port = int(request.query["port"]).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            await channels.send_bytes(channel + port)
        asked = (await channels.receive_bytes())[1:].decode()
        text, error, _ = await asyncio.to_thread(run, request.match_info["pod"], asked.split())
        if error:
            await channels.send_bytes(b"\1" + error.encode())
        answer = text if isinstance(text, bytes) else text.encode()
        for part in (answer[:20], answer[20:]):
            await channels.send_bytes(b"\0" + part)
        await channels.close()
        return channels

    async def logs(request: web.Request) -> web.Response:
        words = ("logs", request.query_string)
        text, error, _ = await asyncio.to_thread(run, request.match_info["pod"], words)
        return web.Response(status=400, text=error) if error else web.Response(body=text)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    application.router.add_get("/exec/{namespace}/{pod}/{container}", execute)
    application.router.add_get("/portForward/{namespace}/{pod}", forward)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    return runner


def _add_node(api: Api, name: str, port: int) -> None:
    made = api.request("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    assert made.status == 201, made.message
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    path = f"/api/v1/nodes/{name}/status"
    assert api.request("PUT", path, {**made.body, "status": status}).status == 200
