"""Faults of nodes, and of the programs on them."""

from __future__ import annotations

import contextlib
import operator
import ssl
import time
from collections.abc import Sequence
from functools import partial

from devcluster import cgroups
from devcluster.cluster import NodeHandle
from devcluster.controlplane import PORT
from devcluster.errors import DevclusterError
from devcluster.node import Node
from devcluster.processes import run
from soak.aim import Aim, Json, Missed, Struck, require
from soak.site import Site
from soak.waiting import until

READY_SECONDS = 180.0
PULL_SECONDS = 60.0
HIDDEN = "localhost/hidden:1"
"""The name of an image that pods cannot find."""
KUBELET_PORT = 10250


def node_power_cut(aim: Aim) -> Struck:
    """Its processes and its memory are gone at once."""
    node = aim.site.cluster.node(aim.node())
    _cut_power(node)
    left = cgroups.processes(node.node.group)
    undo = partial(_power_on, aim.site, node)
    if left or node.node.is_plugged():
        undo()
        raise Missed(f"{node.name} still ran {left}", nodes=(node.name,))
    shown = f"{node.name} runs no process and its link is down"
    return Struck(shown, undo, nodes=(node.name,))


def all_nodes_power_cut(aim: Aim) -> Struck:
    """All pods are gone at once, with the operator's and their memory; the control plane stays."""
    cluster = aim.site.cluster
    nodes = [cluster.node(node.name) for node in cluster.nodes]
    for node in nodes:
        node.partition()  # the last ones to die can report the first to nobody
    for node in nodes:
        _cut_power(node)
    left = [node.name for node in nodes if cgroups.processes(node.node.group)]
    plugged = [node.name for node in nodes if node.node.is_plugged()]
    undo = partial(_start_all, aim.site, nodes)
    names = tuple(node.name for node in nodes)
    if left or plugged:
        undo()
        shown = f"{left} still ran processes, and the links of {plugged} were up"
        raise Missed(shown, nodes=names)
    return Struck(f"{', '.join(names)} run no process and their links are down", undo, nodes=names)


def _start_all(site: Site, nodes: Sequence[NodeHandle]) -> None:
    """Returns when pods can run, and one of the operator's does: Kubernetes has to start these."""
    began = time.time()
    for node in nodes:
        node.start()

    def back() -> bool:
        return all(site.is_back(node.name, began) for node in nodes) and site.operates()

    require(until(back, READY_SECONDS, 0.5), "not all nodes are Ready again, or no operator runs")


def node_frozen(aim: Aim) -> Struck:
    """Its processes stop, and go on later."""
    node = aim.site.cluster.node(aim.node())
    node.freeze()
    if not node.node.is_frozen():
        node.thaw()
        raise Missed(f"{node.name} did not freeze")
    return Struck(f"all processes of {node.name} are stopped", node.thaw, nodes=(node.name,))


def node_partitioned(aim: Aim) -> Struck:
    """Its processes run, but its network is down."""
    node = aim.site.cluster.node(aim.node())
    node.partition()
    if node.node.is_plugged():
        raise Missed(f"the link of {node.name} is up")
    return Struck(f"the link of {node.name} is down", node.heal, nodes=(node.name,))


def node_drained(aim: Aim) -> Struck:
    """The node of a worker."""
    return _drained(aim, aim.node())


def coordinator_drained(aim: Aim) -> Struck:
    """The node of the coordinator, often with a worker."""
    return _drained(aim, str(aim.coordinator()["spec"]["nodeName"]))


def _drained(aim: Aim, node: str) -> Struck:
    before = {pod["metadata"]["uid"] for pod in _pods_on(aim, node)}
    only = f"--pod-selector=regroup.dev/job={aim.job.name}"
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", only, "--timeout=100s")
    kubectl = aim.site.stage.kubectl
    try:
        kubectl("drain", node, *flags, timeout=130)
        stayed = before & {pod["metadata"]["uid"] for pod in _pods_on(aim, node)}
        require(bool(before) and not stayed, f"{node} was not drained: {len(stayed)} pods stayed")
    except Exception:
        kubectl("uncordon", node)
        raise
    return Struck(
        f"{node} is cordoned, and {len(before)} pods of the job left it",
        partial(kubectl, "uncordon", node),
    )


def _pods_on(aim: Aim, node: str) -> list[Json]:
    pods = [*aim.job.pods("worker"), *aim.job.pods(aim.job.meeting_role)]
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def _cut_power(node: NodeHandle) -> None:
    with contextlib.suppress(DevclusterError):  # a process does not end in time, and is found
        node.kill()


def _power_on(site: Site, node: NodeHandle) -> None:
    node.start()
    _wait_until_ready(site, node.name)


def _wait_until_ready(site: Site, name: str) -> None:
    require(until(lambda: site.is_ready(name), READY_SECONDS, 0.5), f"{name} is not Ready again")


def restarted(aim: Aim, component: str) -> Struck:
    """Kubelet or containerd of a node; pods run on."""
    node = aim.site.cluster.node(aim.node())
    name = f"{component}-{node.name}"
    before = aim.site.cluster.processes.pid(name)
    aim.site.cluster.processes.kill(name)
    node.node.socket.unlink(missing_ok=True) if component == "containerd" else None
    if component == "containerd":
        node.node.start_runtime(aim.site.cluster.processes)
    node.node.start_agents(aim.site.cluster.processes)
    after = aim.site.cluster.processes.pid(name)
    require(before != after and after is not None, f"{name} was not replaced")
    return Struck(f"{name} is process {after}, and was {before}")


def image_missing(aim: Aim) -> Struck:
    """A worker's pod is lost, and its node can neither find nor pull the image of the next."""
    pod = aim.worker()[1]
    node, name = aim.site.node_of(pod), pod["metadata"]["name"]
    ctr = partial(_ctr, aim.site, node)
    image = next(one["image"] for one in pod["spec"]["containers"] if one["name"] == "trainer")
    ctr("tag", "--force", image, HIDDEN)
    ctr("rm", image)
    undo = partial(ctr, "tag", "--force", HIDDEN, image)
    try:
        aim.site.api.request("DELETE", f"{aim.site.pod_path(name)}?gracePeriodSeconds=0")
        waits = until(lambda: any(map(_waits_for_image, aim.job.pods("worker"))), PULL_SECONDS)
        require(waits, f"no pod waits for its image on {node.name}", (name,))
    except Exception:
        undo()
        raise
    return Struck(f"a pod cannot pull its image on {node.name}", undo, pods=(name,))


def _ctr(site: Site, node: Node, *command: str) -> None:
    run([site.cluster.bin / "ctr", "-a", node.socket, "-n", "k8s.io", "images", *command])


def _waits_for_image(pod: Json) -> bool:
    waiting = [
        one["state"].get("waiting", {}).get("reason", "")
        for one in pod["status"].get("containerStatuses", ())
    ]
    return any("ImagePull" in reason for reason in waiting)


def _certificate(host: str, port: int) -> str:
    """What a server shows. A kubelet that has just started takes a moment."""
    shown: list[str] = []

    def answers() -> bool:
        with contextlib.suppress(OSError):
            shown.append(ssl.get_server_certificate((host, port)))
        return bool(shown)

    require(until(answers, READY_SECONDS, 0.2), f"{host}:{port} shows no certificate")
    return shown[0]


def certificates_rotated(aim: Aim) -> Struck:
    """New ones for the API server and the kubelet of a node, which both start again."""
    node, cluster = aim.site.cluster.node(aim.node()), aim.site.cluster
    ports = ((cluster.plane.block.control_plane, PORT), (node.node.address, KUBELET_PORT))
    before = [_certificate(*port) for port in ports]
    cluster.stop_api_server()
    cluster.plane.issue_certificate()
    cluster.start_api_server()
    cluster.processes.kill(f"kubelet-{node.name}")
    node.node.issue_certificate()
    node.node.start_agents(cluster.processes)
    _wait_until_ready(aim.site, node.name)
    after = [_certificate(*port) for port in ports]
    require(all(map(operator.ne, before, after)), "a certificate is the one of before")
    return Struck(f"the API server and the kubelet of {node.name} show new certificates")
