"""Enforcement of NetworkPolicies on the nodes of a cluster that asks for it.

Each node gets a kube-router, with its firewall only. It is built from a Go module of its own, when
a cluster first asks for it.
"""

from __future__ import annotations

from pathlib import Path

from devcluster import binaries, network, packages
from devcluster.node import Node
from devcluster.processes import Launch, Processes, run
from devcluster.progress import Report
from devcluster.waiting import wait_until

PACKAGE = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
KUBE_ROUTER = binaries.ProgramApart("kube-router", PACKAGE)
NEEDED = {"iptables": "iptables", "ipset": "ipset"}
"""The programs that kube-router calls, and their Debian packages. The kernel needs ip_set."""
CHAIN = "KUBE-ROUTER-FORWARD"
"""The chain that all packets to and from pods of a node pass through, once policies hold there."""


def enforce(nodes: tuple[Node, ...], processes: Processes, report: Report) -> None:
    """Enforce NetworkPolicies on `nodes` from now on. Returns when they hold.

    A node that lost its power enforces none until this is called again.
    """
    packages.ensure(NEEDED, report)
    kube_router = KUBE_ROUTER.build(report)
    for node in nodes:
        processes.start(_launch(node, kube_router))
    for node in nodes:
        _wait(node, processes)


def _launch(node: Node, kube_router: Path) -> Launch:
    return Launch(
        _component(node),
        (
            kube_router,
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--enable-cni=false",
            "--health-port=0",
            f"--hostname-override={node.name}",
            f"--kubeconfig={node.plane.state / 'admin.kubeconfig'}",
            f"--service-cluster-ip-range={node.plane.block.services}",
        ),
        network.node_namespace(node.plane.cluster, node.index),
        f"{node.group}/system",
    )


def _component(node: Node) -> str:
    return f"kube-router-{node.name}"


def _wait(node: Node, processes: Processes) -> None:
    namespace = network.NAMESPACES / network.node_namespace(node.plane.cluster, node.index)

    def holds() -> bool:
        processes.require_running(_component(node))
        return CHAIN in run(["nsenter", f"--net={namespace}", "iptables", "-S", "FORWARD"])

    hint = f"See {processes.log(_component(node))}."
    wait_until(holds, 60, f"The enforcement of NetworkPolicies on {node.name}", hint)
