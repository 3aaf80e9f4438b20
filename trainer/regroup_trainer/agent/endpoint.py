"""The HTTP endpoint of a worker pod: /metrics, /healthz, snapshots for the job's other pods. By it
the operator sends the coordinator's new address, and asks since when the coordinator does not
answer. A command in the pod asks what the ranks do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import ValidationError

from regroup_trainer.agent import stacks
from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.agent.replication import SnapshotServer
from regroup_trainer.protocol.agent_messages import WorkerStacks
from regroup_trainer.protocol.desired import CoordinatorAddress, CoordinatorContact
from regroup_trainer.protocol.message import Message, describe_invalid
from regroup_trainer.system.server_connections import Connections, Listening

UNPROVEN_CONNECTIONS = 64
"""The most connections over which no request with the job's token has come: of probes, scrapers,
newcomers, and of whoever else reaches the port. Those of the job's own pods have no bound.
"""


async def start_endpoint(
    metrics: AgentMetrics,
    snapshot_server: SnapshotServer,
    on_address: Callable[[str], None],
    contact: Callable[[], CoordinatorContact],
    show_stacks: Callable[[], Awaitable[WorkerStacks]],
    port: int,
) -> Listening:
    """Serve on `port` of all addresses (0: any free one). The caller cleans up.

    `on_address` gets the coordinator's URL from whoever has the job's token, who may ask for
    `contact` and `show_stacks`, too. Raises OSError when the port is taken.
    """

    async def expose(_request: web.Request) -> web.Response:
        body = b"".join(generate_latest(registry) for registry in metrics.registries)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def move(request: web.Request) -> web.Response:
        snapshot_server.authorize(request)
        try:
            address = CoordinatorAddress.model_validate_json(await request.read())
        except ValidationError as error:
            raise web.HTTPUnprocessableEntity(text=describe_invalid(error)) from None
        on_address(address.url)
        return web.Response(status=204)

    async def show_contact(request: web.Request) -> web.Response:
        snapshot_server.authorize(request)
        return _json(contact())

    async def expose_stacks(request: web.Request) -> web.Response:
        snapshot_server.authorize(request)
        return _json(await show_stacks())

    connections = Connections(lambda: connections.proven + UNPROVEN_CONNECTIONS)
    application = web.Application(middlewares=[_counting(connections, snapshot_server)])
    application.router.add_put("/v1/coordinator", move)
    application.router.add_get("/v1/coordinator", show_contact)
    application.router.add_get(stacks.PATH, expose_stacks)
    application.router.add_get("/metrics", expose)
    application.router.add_get("/healthz", healthy)
    snapshot_server.add_to(application.router)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    return await connections.listen(runner, None, port)


def _json(message: Message) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")


def _counting(connections: Connections, server: SnapshotServer) -> Middleware:
    """Reports to `connections` over which of them requests come, and with the token."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.request(request.transport)
        if server.has_token(request):
            connections.prove(request.transport)
        return await handler(request)

    return count


def port_of(endpoint: Listening, address: str) -> int:
    """The port for clients that use `address`: a free port differs between IPv4 and IPv6."""
    mine = [port for host, port, *_ in endpoint.addresses if (":" in host) == (":" in address)]
    return int(mine[0])
