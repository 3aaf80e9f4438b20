"""The worker pod's HTTP endpoint: /metrics and /healthz."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from regroup_trainer.agent.metrics import AgentMetrics


async def start_endpoint(metrics: AgentMetrics, port: int) -> web.AppRunner:
    """Serve on `port` of all addresses (0: any free one). The caller cleans the runner up. Raises OSError."""

    async def expose(_request: web.Request) -> web.Response:
        body = b"".join(generate_latest(registry) for registry in metrics.registries)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    application = web.Application()
    application.router.add_get("/metrics", expose)
    application.router.add_get("/healthz", healthy)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
