"""Addresses, network namespaces and links of a cluster.

All addresses are from 198.18.0.0/15 (RFC 2544, for tests). Packets to them do not leave the
machine, and no namespace has a route to the outside. A cluster owns one block of this range: a
bridged network for the nodes, one network of pods per node, and the services.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import CommandFailedError, DevclusterError
from devcluster.processes import run

TEST_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
BLOCK_PREFIX = 19
BLOCKS = 2 ** (BLOCK_PREFIX - TEST_RANGE.prefixlen)
MAX_NODES = 15
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Block:
    """The addresses of one cluster: the `index`-th of 16 blocks of 8192."""

    index: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The whole block."""
        return ipaddress.IPv4Network((self._at(0), BLOCK_PREFIX))

    @property
    def pods(self) -> ipaddress.IPv4Network:
        """The addresses of all pods and nodes."""
        return ipaddress.IPv4Network((self._at(0), 20))

    @property
    def services(self) -> ipaddress.IPv4Network:
        """Virtual addresses of services."""
        return ipaddress.IPv4Network((self._at(4096), 20))

    @property
    def control_plane(self) -> str:
        """The API server's and the cluster DNS's real address."""
        return str(self._at(1))

    @property
    def host(self) -> str:
        """The machine's own address on the nodes' network."""
        return str(self._at(254))

    @property
    def kubernetes_service(self) -> str:
        """Virtual address of the service `kubernetes`."""
        return str(self._at(4096 + 1))

    @property
    def dns_service(self) -> str:
        """Virtual address of the service `kube-dns`."""
        return str(self._at(4096 + 10))

    def node(self, index: int) -> str:
        """Address of node `index` (from 1)."""
        return str(self._at(10 + index))

    def node_pods(self, index: int) -> str:
        """Network of the pods on node `index` (from 1)."""
        return f"{self._at(256 * index)}/24"

    def _at(self, offset: int) -> ipaddress.IPv4Address:
        return ipaddress.IPv4Address(
            int(TEST_RANGE.network_address) + self.index * 2 ** (32 - BLOCK_PREFIX) + offset
        )


def free_block(taken: Iterable[int], routed: Sequence[ipaddress.IPv4Network]) -> Block:
    """The first block that neither a cluster nor a route of the machine uses."""
    others = set(taken)
    for index in range(BLOCKS):
        block = Block(index)
        if index not in others and not any(block.network.overlaps(network) for network in routed):
            return block
    raise DevclusterError(
        f"All {BLOCKS} blocks of {TEST_RANGE} are in use: take a cluster down (`devcluster down`)."
    )


def routed_networks() -> list[ipaddress.IPv4Network]:
    """The destinations of the machine's routes within the range for tests."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    destinations = [
        ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"][0].isdigit()
    ]
    return [network for network in destinations if network.subnet_of(TEST_RANGE)]


def control_plane_namespace(cluster: str) -> str:
    """Name of the namespace that holds the control plane and the nodes' bridge."""
    return f"rg-{cluster}-cp"


def node_namespace(cluster: str, index: int) -> str:
    """Name of the namespace of node `index` (from 1)."""
    return f"rg-{cluster}-n{index}"


def host_link(cluster: str) -> str:
    """Name of the machine's link to the nodes' network. The kernel allows at most 15 characters."""
    return f"rg-{cluster}"


def create(cluster: str, block: Block, nodes: int) -> None:
    """Create the namespaces, the bridge between them, and the machine's route to the cluster's
    block.
    """
    control_plane = control_plane_namespace(cluster)
    run(["ip", "netns", "add", control_plane])
    _batch(
        control_plane,
        "link set lo up",
        "link add br0 type bridge",
        f"addr add {block.control_plane}/24 dev br0",
        "link set br0 up",
    )
    link = host_link(cluster)
    _batch(
        "",
        f"link add {link} type veth peer name host netns {control_plane}",
        f"addr add {block.host}/24 dev {link}",
        f"link set {link} up",
    )
    _batch(control_plane, "link set host master br0 up")
    run(["ip", "route", "add", str(block.network), "via", block.control_plane, "dev", link])
    for index in range(1, nodes + 1):
        _create_node(cluster, block, index, nodes)
    for namespace in [
        control_plane,
        *(node_namespace(cluster, index) for index in range(1, nodes + 1)),
    ]:
        run(
            [
                "nsenter",
                f"--net={NAMESPACES / namespace}",
                "sh",
                "-c",
                "echo 1 > /proc/sys/net/ipv4/ip_forward",
            ]
        )


def _create_node(cluster: str, block: Block, index: int, nodes: int) -> None:
    namespace, control_plane = node_namespace(cluster, index), control_plane_namespace(cluster)
    run(["ip", "netns", "add", namespace])
    _batch(
        control_plane,
        f"link add n{index} type veth peer name eth0 netns {namespace}",
        f"link set n{index} master br0 up",
        f"route add {block.node_pods(index)} via {block.node(index)}",
    )
    others = [other for other in range(1, nodes + 1) if other != index]
    _batch(
        namespace,
        "link set lo up",
        f"addr add {block.node(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {block.control_plane}",
        *(f"route add {block.node_pods(other)} via {block.node(other)}" for other in others),
    )


def set_link(cluster: str, index: int, up: bool) -> None:
    """Connect or disconnect the network of a node. Packets to a disconnected node are lost without
    an answer.
    """
    run(
        [
            "ip",
            "-n",
            control_plane_namespace(cluster),
            "link",
            "set",
            f"n{index}",
            "up" if up else "down",
        ]
    )


def is_link_up(cluster: str, index: int) -> bool:
    """Whether the network of a node is connected."""
    shown = run(
        ["ip", "-json", "-n", control_plane_namespace(cluster), "link", "show", f"n{index}"]
    )
    return "UP" in json.loads(shown)[0]["flags"]


def namespaces(cluster: str) -> list[str]:
    """The names of the existing namespaces of a cluster."""
    if not NAMESPACES.is_dir():
        return []
    names = [path.name for path in NAMESPACES.iterdir()]
    expected = {
        control_plane_namespace(cluster),
        *(node_namespace(cluster, i) for i in range(1, MAX_NODES + 1)),
    }
    return sorted(expected.intersection(names))


def remove(cluster: str) -> None:
    """Remove all namespaces and the link of a cluster. The kernel removes the routes with them."""
    for namespace in namespaces(cluster):
        run(["ip", "netns", "delete", namespace])
    if Path(f"/sys/class/net/{host_link(cluster)}").exists():
        try:
            run(["ip", "link", "delete", host_link(cluster)])
        except CommandFailedError as gone:  # the kernel may remove it meanwhile, with its other end
            if "Cannot find device" not in gone.message:
                raise


def check() -> None:
    """Raise CommandFailedError unless this machine can create network namespaces."""
    run(["unshare", "--net", "ip", "link", "add", "probe", "type", "veth", "peer", "name", "other"])


def _batch(namespace: str, *commands: str) -> None:
    """Run `ip` commands in a network namespace (empty: the caller's)."""
    run(
        ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"],
        stdin="\n".join(commands) + "\n",
    )
