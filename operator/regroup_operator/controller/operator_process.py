"""The operator's process, inside a cluster, or outside with KUBECONFIG."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass

import kopf

from regroup_operator.api.settings import Settings
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.credentials import login
from regroup_operator.controller.handlers import Operator, register, serve_health
from regroup_operator.controller.operator_key import read_or_make_keys
from regroup_operator.controller.operator_metrics import serve_metrics
from regroup_operator.controller.operator_traces import OperatorTraces
from regroup_operator.controller.reconcile import round_subject
from regroup_operator.errors import ClusterError, OperatorError
from regroup_operator.render.keyring import Keyring
from regroup_trainer.protocol.environment import LOG_FORMAT
from regroup_trainer.system.log_lines import log_to_stderr
from regroup_trainer.system.memory_limit import collect_seldom
from regroup_trainer.system.otlp_settings import exporter_of
from regroup_trainer.system.server_connections import raise_open_files

RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class Basis:
    """What the operator learns of the cluster before it starts."""

    may_watch_nodes: bool
    """Whether it has the rights to watch nodes and read their leases."""
    keys: Keyring


async def find_basis(cluster: Cluster, key_secret: str, pause: float = RETRY_SECONDS) -> Basis:
    """Raises SettingsError when there is no key, and ClusterError when a request is refused.

    Waits for an API server that is away or overloaded. A kubelet would restart an operator that
    ended instead, but ever less often, and the operator would miss the API server's return by
    minutes.
    """
    while True:
        try:
            keys = await read_or_make_keys(cluster, key_secret)
            return Basis(await _may_watch_nodes(cluster), keys)
        except ClusterError as error:
            if not error.may_pass:
                raise
            logging.warning("%s", error)
            await asyncio.sleep(pause)


async def _may_watch_nodes(cluster: Cluster) -> bool:
    return await cluster.may("watch", "", "nodes") and await cluster.may(
        "get", "coordination.k8s.io", "leases", "kube-node-lease"
    )


async def ask(settings: Settings) -> Basis:
    """Find the basis in the cluster, and serve probes meanwhile: it may take long, and a kubelet
    kills a process whose liveness nobody confirms. Raises as `find_basis` does, and OSError.
    """
    health = await serve_health(settings.health_port, lambda: 0, lambda: False)
    try:
        async with Cluster(login) as cluster:
            return await find_basis(cluster, settings.key_secret)
    finally:
        await health.cleanup()


def main() -> int:
    """Run until SIGTERM. Returns the exit code."""
    try:
        settings = Settings.read(os.environ)
        lines = log_to_stderr(os.environ.get(LOG_FORMAT), settings.log_level, with_logger=True)
        lines.subject = round_subject.get
        for chatty in ("kopf", "aiohttp.access"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        raise_open_files()
        collect_seldom()
        basis = asyncio.run(ask(settings))
    except (OperatorError, kopf.LoginError) as error:
        print(f"regroup-operator: {error}", file=sys.stderr)
        return 2
    logging.info(
        "keys in Secret %s: %s for new jobs, former ones %s",
        settings.key_secret,
        basis.keys.current,
        ", ".join(sorted(basis.keys.keys.keys() - {basis.keys.current})) or "none",
    )
    if not basis.may_watch_nodes:
        logging.warning(
            "no right to watch nodes and read their leases: unresponsive nodes are not avoided "
            "(see watch.nodes of the chart)"
        )
    if settings.metrics_port:
        serve_metrics(settings.metrics_port)
    registry = kopf.OperatorRegistry()
    exporter = exporter_of(os.environ, "regroup-operator")
    traces = OperatorTraces(exporter.offer) if exporter is not None else None
    operator = Operator(settings, basis.keys, traces=traces)
    register(registry, operator, may_watch_nodes=basis.may_watch_nodes)
    kopf.run(registry=registry, standalone=True, clusterwide=True)
    if exporter is not None:
        exporter.close()
    return 0
