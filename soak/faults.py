"""What can be done to a job: one function for each kind of fault, with proof that it struck.

A fault that finds no victim, or whose proof fails, raises Missed: it does not count.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from devcluster import cgroups
from soak.draw import Fault
from soak.out_of_memory import run_out
from soak.site import Job, Process, Site, read_proc
from soak.volume import PROBE_SECONDS, Slowness, SoakVolume
from soak.waiting import until

GONE_SECONDS = 15.0
READY_SECONDS = 180.0
TOGETHER_SECONDS = 0.2
SLOW_PROBES, SLOW_SECONDS = 8, 0.05
TORCHRUN_SCRIPT = "torchrun_loop.py"
Json = dict[str, Any]
T = TypeVar("T")


class Missed(Exception):
    """The fault did not strike."""


def nothing() -> None:
    """How a fault that is over at once is undone."""


@dataclass(frozen=True)
class Struck:
    """A fault that struck."""

    proof: str
    """What was seen, as a sentence."""
    undo: Callable[[], None] = nothing
    pods: tuple[str, ...] = ()
    """Those whose ranks lost their state at once."""
    node: str = ""
    """All ranks on it lost theirs, or cannot be reached."""


@dataclass(frozen=True)
class Aim:
    """What a fault is meant for."""

    site: Site
    job: Job
    choice: float
    """In [0, 1)."""

    def worker(self) -> tuple[int, Json]:
        """Rank and pod of the worker that is hit."""
        return _pick(self.job.workers(), self.choice, "worker that trains")

    def coordinator(self) -> Json:
        """The pod of the coordinator, or of torchrun's store."""
        role = self.job.meeting_role
        return _pick(self.job.pods(role), 0, role)

    def node(self) -> str:
        """The name of the node of the worker that is hit."""
        return str(self.worker()[1]["spec"]["nodeName"])


def _pick(found: Sequence[T], choice: float, what: str) -> T:
    if not found:
        raise Missed(f"there is no {what}")
    return found[int(choice * len(found))]


def strike(aim: Aim, fault: Fault) -> Struck:
    """Do it. Raises Missed."""
    return STRIKES[fault.kind](aim)


# --- pods and processes


def _pod_deleted(aim: Aim, *, grace: int = 30) -> Struck:
    pod = aim.worker()[1]
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    where = f"/api/v1/namespaces/{aim.site.namespace}/pods/{name}"
    aim.site.api.request("DELETE", f"{where}?gracePeriodSeconds={grace}")

    def leaves() -> bool:
        return uid not in {one["metadata"]["uid"] for one in aim.job.pods("worker")}

    _require(until(leaves, GONE_SECONDS), f"pod {name} is still there")
    return Struck(f"pod {name} with UID {uid} is gone or being deleted", pods=(name,))


def _rank_process(aim: Aim) -> tuple[str, Process]:
    rank, pod = aim.worker()
    where = pod["metadata"]["name"]
    found = aim.site.processes(pod)
    script = torchrun_rank(list(found)) if aim.job.is_torchrun else None
    for pid, name in found.items():
        if name == f"rank-{rank}" or pid == script:
            return f"rank {rank} in {where}", Process.of(pid)
    raise Missed(f"rank {rank} has no process in {where}")


def torchrun_rank(pids: list[int]) -> int | None:
    """The process that runs torchrun's script: torchrun and what watches it have it as a child."""
    commands = {pid: read_proc(pid, "cmdline").rstrip("\0").split("\0") for pid in pids}
    named = [pid for pid, command in commands.items() if command[-1] == TORCHRUN_SCRIPT]
    stats = [read_proc(pid, "stat").rpartition(")")[2].split() for pid in named]
    parents = {stat[1] for stat in stats if stat}
    return next((pid for pid in named if str(pid) not in parents), None)


def _pod_names(aim: Aim) -> tuple[str, ...]:
    return (str(aim.worker()[1]["metadata"]["name"]),)


def _rank_killed(aim: Aim) -> Struck:
    what, process = _rank_process(aim)
    return replace(_killed(what, process), pods=_pod_names(aim))


def _agent_killed(aim: Aim) -> Struck:
    pod = aim.worker()[1]
    struck = _killed(f"the agent of {pod['metadata']['name']}", aim.site.main_process(pod))
    return replace(struck, pods=(pod["metadata"]["name"],))


def _coordinator_killed(aim: Aim) -> Struck:
    pod = aim.coordinator()
    return _killed(pod["metadata"]["name"], aim.site.main_process(pod))


def _operator_killed(aim: Aim) -> Struck:
    pod = _pick(aim.site.operators(), aim.choice, "operator")
    return _killed(pod["metadata"]["name"], aim.site.main_process(pod))


def _two_within_200_ms(aim: Aim) -> Struck:
    """Two agents, or an agent and the coordinator; at least one worker stays."""
    workers = aim.job.workers()
    if len(workers) < 3:
        raise Missed(f"only {len(workers)} workers train")
    pods = [pod for _, pod in workers]
    first = int(aim.choice * len(pods))
    second = pods[(first + 1) % len(pods)] if aim.choice * 100 % 2 < 1 else aim.coordinator()
    chosen = (pods[first], second)
    victims = [aim.site.main_process(pod) for pod in chosen]
    began = time.monotonic()
    for victim in victims:
        victim.kill()
    apart = time.monotonic() - began
    names = " and ".join(pod["metadata"]["name"] for pod in chosen)
    gone = until(lambda: all(victim.is_gone for victim in victims), GONE_SECONDS, 0.02)
    _require(gone and apart < TOGETHER_SECONDS, f"{names} did not end together ({apart:.3f} s)")
    return Struck(
        f"process 1 of {names} is gone, killed within {apart * 1000:.1f} ms",
        pods=tuple(pod["metadata"]["name"] for pod in chosen),
    )


def _killed(what: str, process: Process) -> Struck:
    process.kill()
    _require(until(lambda: process.is_gone, GONE_SECONDS, 0.02), f"{what} does not end")
    return Struck(f"{what} (process {process.pid}) is gone")


def _rank_out_of_memory(aim: Aim) -> Struck:
    pods = _pod_names(aim)
    what, process = _rank_process(aim)
    kills = run_out(process)
    _require(kills > 0, f"the kernel did not kill {what}")
    return Struck(
        f"the kernel's OOM killer ended {kills} process(es) in the group of {what}", pods=pods
    )


# --- nodes


def _node_power_cut(aim: Aim) -> Struck:
    node = aim.site.cluster.node(aim.node())
    node.kill()
    left = cgroups.processes(node.node.group)
    if left or node.node.is_plugged():
        _start(aim.site, node.name, node.start)
        raise Missed(f"{node.name} still ran {left}")
    return Struck(
        f"{node.name} runs no process and its link is down",
        lambda: _start(aim.site, node.name, node.start),
        node=node.name,
    )


def _node_frozen(aim: Aim) -> Struck:
    node = aim.site.cluster.node(aim.node())
    node.freeze()
    if not node.node.is_frozen():
        node.thaw()
        raise Missed(f"{node.name} did not freeze")
    return Struck(f"all processes of {node.name} are stopped", node.thaw, node=node.name)


def _node_partitioned(aim: Aim) -> Struck:
    node = aim.site.cluster.node(aim.node())
    node.partition()
    if node.node.is_plugged():
        raise Missed(f"the link of {node.name} is up")
    return Struck(f"the link of {node.name} is down", node.heal, node=node.name)


def _node_drained(aim: Aim) -> Struck:
    return _drained(aim, aim.node())


def _coordinator_drained(aim: Aim) -> Struck:
    return _drained(aim, str(aim.coordinator()["spec"]["nodeName"]))


def _drained(aim: Aim, node: str) -> Struck:
    before = {pod["metadata"]["uid"] for pod in _pods_on(aim, node)}
    only = f"--pod-selector=regroup.dev/job={aim.job.name}"
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", only, "--timeout=100s")
    kubectl = aim.site.stage.kubectl
    try:
        kubectl("drain", node, *flags, timeout=130)
        stayed = before & {pod["metadata"]["uid"] for pod in _pods_on(aim, node)}
        _require(bool(before) and not stayed, f"{node} was not drained: {len(stayed)} pods stayed")
    except Exception:
        kubectl("uncordon", node)
        raise
    return Struck(
        f"{node} is cordoned, and {len(before)} pods of the job left it",
        lambda: _ignore(kubectl("uncordon", node)),
    )


def _pods_on(aim: Aim, node: str) -> list[Json]:
    pods = [*aim.job.pods("worker"), *aim.job.pods(aim.job.meeting_role)]
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def _start(site: Site, name: str, start: Callable[[], None]) -> None:
    start()
    _require(until(lambda: site.is_ready(name), READY_SECONDS, 0.5), f"{name} is not Ready again")


def _restarted(aim: Aim, component: str) -> Struck:
    node = aim.site.cluster.node(aim.node())
    name = f"{component}-{node.name}"
    before = aim.site.cluster.processes.pid(name)
    aim.site.cluster.processes.kill(name)
    node.node.socket.unlink(missing_ok=True) if component == "containerd" else None
    if component == "containerd":
        node.node.start_runtime(aim.site.cluster.processes)
    node.node.start_agents(aim.site.cluster.processes)
    after = aim.site.cluster.processes.pid(name)
    _require(before != after and after is not None, f"{name} was not replaced")
    return Struck(f"{name} is process {after}, and was {before}")


# --- control plane and objects


def _api_server_away(aim: Aim) -> Struck:
    aim.site.cluster.stop_api_server()
    if aim.site.api.answers("/readyz"):
        aim.site.cluster.start_api_server()
        raise Missed("the API server answers")
    return Struck("the API server does not answer", aim.site.cluster.start_api_server)


def _object_deleted(aim: Aim, kind: str) -> Struck:
    read, where = aim.site.stage.kubectl.read, ("-n", aim.site.namespace)
    ours = ("-l", f"regroup.dev/job={aim.job.name}")
    found = _pick(read(kind, *where, *ours)["items"], 0, kind)["metadata"]
    aim.site.stage.kubectl("delete", kind, found["name"], *where)
    uids = {one["metadata"]["uid"] for one in read(kind, *where, *ours)["items"]}
    _require(found["uid"] not in uids, f"{kind} {found['name']} is still there")
    return Struck(f"{kind} {found['name']} with UID {found['uid']} is gone")


# --- the volume


def _volume_full(aim: Aim) -> Struck:
    filler = aim.job.volume.content / ".filler"
    try:
        _fill(filler)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return Struck(f"a write to the volume failed: {error}", filler.unlink)
        raise
    raise Missed("the volume takes any amount")


def _volume_silent(aim: Aim) -> Struck:
    volume = aim.job.volume
    volume.stop()
    if volume.answer_seconds() is not None:
        volume.go_on()
        raise Missed("the volume answers")
    return Struck(f"the volume did not answer for {PROBE_SECONDS:.0f} s", volume.go_on)


def _volume_slow(aim: Aim) -> Struck:
    slow = Slowness(aim.job.volume)
    answers = list(_answers(aim.job.volume))
    mean = sum(answers) / len(answers)
    if mean < SLOW_SECONDS:
        slow.end()
        raise Missed(f"the volume answers in {mean:.3f} s")
    return Struck(f"the volume answers in {mean:.2f} s on average", slow.end)


def _answers(volume: SoakVolume) -> Iterator[float]:
    for _ in range(SLOW_PROBES):
        yield volume.answer_seconds() or PROBE_SECONDS
        time.sleep(SLOW_SECONDS)  # else all ask within one moment in which it answers


def _fill(filler: Path) -> None:
    """Raises OSError when no byte more fits."""
    with _opened(filler) as file:
        for size in (2**20, 4096, 1):
            block = bytes(size)
            while True:
                try:
                    os.write(file, block)
                except OSError:
                    if size == 1:
                        raise
                    break


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        yield file
    finally:
        os.close(file)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Missed(otherwise)


def _ignore(_result: object) -> None:
    return


STRIKES: Mapping[str, Callable[[Aim], Struck]] = {
    "pod-deleted": _pod_deleted,
    "pod-force-deleted": lambda aim: _pod_deleted(aim, grace=0),
    "rank-killed": _rank_killed,
    "agent-killed": _agent_killed,
    "coordinator-killed": _coordinator_killed,
    "two-within-200-ms": _two_within_200_ms,
    "node-power-cut": _node_power_cut,
    "node-frozen": _node_frozen,
    "node-partitioned": _node_partitioned,
    "node-drained": _node_drained,
    "coordinator-drained": _coordinator_drained,
    "api-server-away": _api_server_away,
    "operator-killed": _operator_killed,
    "volume-full": _volume_full,
    "volume-silent": _volume_silent,
    "volume-slow": _volume_slow,
    "secret-deleted": lambda aim: _object_deleted(aim, "secret"),
    "service-deleted": lambda aim: _object_deleted(aim, "service"),
    "policy-deleted": lambda aim: _object_deleted(aim, "networkpolicy"),
    "rank-out-of-memory": _rank_out_of_memory,
    "kubelet-restarted": lambda aim: _restarted(aim, "kubelet"),
    "containerd-restarted": lambda aim: _restarted(aim, "containerd"),
}
