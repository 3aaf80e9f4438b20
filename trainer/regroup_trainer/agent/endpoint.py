"""The worker pod's HTTP endpoint: /metrics and /healthz, and snapshots for the other pods of the job."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from regroup_trainer.agent.metrics import AgentMetrics
from regroup_trainer.agent.replication import Keeper


async def start_endpoint(metrics: AgentMetrics, keeper: Keeper, port: int) -> web.AppRunner:
    """Serve on `port` of all addresses (0: any free one). The caller cleans the runner up. Raises OSError."""

    async def expose(_request: web.Request) -> web.Response:
        body = b"".join(generate_latest(registry) for registry in metrics.registries)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    application = web.Application()
    application.router.add_get("/metrics", expose)
    application.router.add_get("/healthz", healthy)
    keeper.add_to(application.router)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def port_of(endpoint: web.AppRunner, address: str) -> int:
    """Where it listens for those who know it by `address`: a free port is another one for each family of addresses."""
    mine = [port for host, port, *_ in endpoint.addresses if (":" in host) == (":" in address)]
    return int(mine[0])
