"""kopf as the shell: login, watching, start and end. A handler only puts the key of a job on the queue.

No create/update/field chains, daemons, timers or finalizers: reconciling is level-triggered, and all that has to be
remembered is in the status.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import kopf

from regroup_operator import names
from regroup_operator.api import GROUP, PLURAL, VERSION
from regroup_operator.cluster import Cluster
from regroup_operator.coordination import Coordinators, Key
from regroup_operator.errors import OperatorError
from regroup_operator.metrics import count_reconcile, count_taken, job_series
from regroup_operator.nodes import NodeWatch
from regroup_operator.observed import read_ready
from regroup_operator.queue import WorkQueue
from regroup_operator.reconcile import Reconciler
from regroup_operator.settings import Settings
from regroup_operator.storage import NoDiffBase, NoProgress

WORKERS = 8
"""Jobs that are reconciled at a time."""
ERROR_BACKOFFS = (0.1, 0.5, 1, 2, 5, *([10] * 60))
"""Pauses of kopf's watchers during an outage of the API server; its default ends the process after a minute."""

log = logging.getLogger(__name__)


def login() -> kopf.ConnectionInfo:
    """Credentials of the pod's service account, else of the kubeconfig. Raises kopf.LoginError.

    Inside the cluster the API server is called by address: it must be reached also while the cluster's DNS is down.
    """
    settings = kopf.OperatorSettings()
    info = kopf.login_with_service_account(settings=settings)
    if info is not None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if host is None:
            return info
        return dataclasses.replace(info, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")
    info = kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise kopf.LoginError("neither a service account nor a kubeconfig: set KUBECONFIG")
    return info


class Operator:
    """The running operator: the queue, its workers, and what they share. Built at kopf's startup."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.queue: WorkQueue[Key] = WorkQueue()
        self.nodes: NodeWatch | None = None
        self._closers: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.healthy = True

    async def start(self, *, may_watch_nodes: bool) -> None:
        """Open the clients and start the workers."""
        cluster = await Cluster(login).__aenter__()
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256))
        coordinators = Coordinators(session, self.queue.add)
        self.nodes = NodeWatch(cluster, allowed=may_watch_nodes)
        reconciler = Reconciler(cluster, coordinators, self.nodes, self._settings, job_series)
        self._tasks = [asyncio.create_task(self._work(reconciler), name=f"worker {n}") for n in range(WORKERS)]
        self._closers = [coordinators, session, cluster]

    async def stop(self) -> None:
        """End the workers and close the clients; the jobs train on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.queue.close()
        coordinators, session, cluster = self._closers
        coordinators.close()
        await session.close()
        await cluster.__aexit__(None, None, None)

    async def _work(self, reconciler: Reconciler) -> None:
        while True:
            key, waited = await self.queue.take()
            count_taken(waited, len(self.queue))
            started = time.monotonic()
            failed = await self._reconcile(reconciler, key)
            count_reconcile(time.monotonic() - started, failed=failed)
            self.queue.done(key, failed=failed)

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> bool:
        """One round; whether it failed."""
        try:
            again = await reconciler.reconcile(key)
        except OperatorError as error:
            log.warning("%s/%s: %s", *key, error)
            return True
        except Exception:
            log.exception("%s/%s: reconcile failed", *key)
            return True
        if again is not None:
            self.queue.add_after(key, max(0.0, again))
        return False


def register(registry: kopf.OperatorRegistry, operator: Operator, *, may_watch_nodes: bool) -> None:
    """Tell kopf what to watch and what to do about it."""

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.ConnectionInfo:
        return login()

    @kopf.on.startup(registry=registry)
    async def _startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await operator.start(may_watch_nodes=may_watch_nodes)

    @kopf.on.cleanup(registry=registry)
    async def _cleanup(**_: Any) -> None:
        await operator.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def _job(namespace: str | None, name: str, meta: kopf.Meta, status: kopf.Status, **event: Any) -> None:
        # A status that we have written ourselves must not make a refused request be repeated at once.
        ours = event["type"] == "MODIFIED" and meta.get("generation") == status.get("observedGeneration")
        operator.queue.add((namespace or "", name), patient=ours)

    @kopf.on.event("", "v1", "pods", registry=registry, labels={names.JOB: kopf.PRESENT})
    async def _pod(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        operator.queue.add((namespace or "", labels[names.JOB]))

    if may_watch_nodes:

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def _node(name: str, body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
            ready = type != "DELETED" and read_ready(body)
            for key in operator.nodes.reported(name, ready=ready) if operator.nodes else ():
                operator.queue.add(key)

    @kopf.on.probe(registry=registry, id="reconciling")
    async def _probe(**_: Any) -> int:
        return len(operator.queue)


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf's own settings."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.networking.error_backoffs = ERROR_BACKOFFS
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.label_selectors["pods"] = names.JOB
