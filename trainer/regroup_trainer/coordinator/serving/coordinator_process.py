"""The process of a coordinator. REGROUP_* variables configure it (`protocol.environment`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving import arrivals, server
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.environment import LOG_FORMAT, CoordinatorEnvironment, read_token
from regroup_trainer.protocol.exit_codes import WRONG_USAGE
from regroup_trainer.system.kept_file import KeptFile
from regroup_trainer.system.log_lines import LogLimit, Subject, log_to_stderr
from regroup_trainer.system.memory_limit import collect_seldom
from regroup_trainer.system.otlp_settings import exporter_of
from regroup_trainer.system.process_signals import ignore_signals
from regroup_trainer.system.server_connections import raise_open_files

if TYPE_CHECKING:
    from regroup_trainer.system.span_exporter import SpanExporter

HAND_OVER_SECONDS = 3.0
"""After SIGTERM, for the agents that leave as well to report it. Others wait for a successor."""
DRAIN_SECONDS = 12.0
"""The same for the agents on this coordinator's node, which a drain evicts too. kubectl
drain tries an eviction that a budget forbids again after 5 s, and a busy kubelet takes seconds to
pass a signal on.
"""

log = logging.getLogger("regroup_trainer.coordinator")


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    lines = log_to_stderr(os.environ.get(LOG_FORMAT))
    for written_by_peers in (arrivals.log, server.log, logging.getLogger("aiohttp.server")):
        written_by_peers.addFilter(LogLimit())
    raise_open_files()
    collect_seldom()
    try:
        environment = CoordinatorEnvironment.read(dict(os.environ))
        kept = KeptFile(Path(environment.kept_file) if environment.kept_file else None)
        desired = environment.first_desired(kept.read())
        token = read_token(environment.token_file)
    except ConfigurationError as error:
        log.error("the coordinator cannot start: %s", error)
        return WRONG_USAGE
    now = time.monotonic()
    core = Coordinator(environment.term, environment.node, desired, now, time.time() - now)
    lines.subject = partial(_subject, core)
    exporter = exporter_of(os.environ, "regroup-coordinator")
    if exporter is None:
        asyncio.run(_serve(Server(core, token, kept), environment))
        return 0
    look = _traced(core, environment.job_uid, exporter, now)
    asyncio.run(_serve(Server(core, token, kept, look), environment))
    exporter.close()
    return 0


def _subject(core: Coordinator) -> Subject:
    """What this coordinator's log is about."""
    desired, current = core.state.desired, core.state.current
    number = str(current.record.number) if current else ""
    return Subject(desired.namespace, desired.job, number)


def _traced(
    core: Coordinator, job_uid: str, exporter: SpanExporter, now: float
) -> Callable[[float], None]:
    """What has the traces of this coordinator exported."""
    from regroup_trainer.coordinator.serving.traced_generations import TracedGenerations

    wanted = core.state.desired
    identity = job_uid or f"{wanted.namespace}/{wanted.job}/{wanted.directory}"
    return TracedGenerations(core.state, identity, exporter.offer, now).look


async def _serve(server: Server, environment: CoordinatorEnvironment) -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    async with server.serve(environment.address or None, environment.port) as port:
        log.info("coordinator of term %d listens on port %d", environment.term, port)
        ticking = asyncio.create_task(server.run())
        stopping = asyncio.create_task(terminated.wait())
        await asyncio.wait({ticking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            log.info("received SIGTERM; waiting for the agents that leave as well")
            await server.hand_over(HAND_OVER_SECONDS, DRAIN_SECONDS)
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
    ignore_signals(signal.SIGTERM)
