"""Faults of pods and of their processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from devcluster.processes import read_proc
from soak import clock
from soak.aim import Aim, Json, Missed, Struck, pick, require
from soak.jobs import CLOCK_FILE, EPHEMERAL_BYTES, SIDECAR
from soak.out_of_memory import run_out
from soak.process import Process
from soak.site import Site
from soak.waiting import until

GONE_SECONDS = 15.0
TOGETHER_SECONDS = 0.2
JOB_SECONDS = 2.0
"""All of a job are killed within this time. Between two kills, others may get the core."""
EVICTED_SECONDS = 90.0
"""The kubelet looks at the use of disks once a minute."""
TORCHRUN_SCRIPT = "torchrun_loop.py"


def pod_deleted(aim: Aim, *, grace: int = 30) -> Struck:
    """The pod of a worker; with no grace its processes are killed."""
    pod = aim.worker()[1]
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    aim.site.api.request("DELETE", f"{aim.site.pod_path(name)}?gracePeriodSeconds={grace}")

    def leaves() -> bool:
        return uid not in {one["metadata"]["uid"] for one in aim.job.pods("worker")}

    require(until(leaves, GONE_SECONDS), f"pod {name} is still there", (name,))
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


def rank_killed(aim: Aim) -> Struck:
    """SIGKILL to the process that trains."""
    what, process = _rank_process(aim)
    return replace(_killed(what, process), pods=_pod_names(aim))


def agent_killed(aim: Aim) -> Struck:
    """SIGKILL to process 1 of a worker."""
    pod = aim.worker()[1]
    struck = _killed(f"the agent of {pod['metadata']['name']}", aim.site.main_process(pod))
    return replace(struck, pods=(pod["metadata"]["name"],))


def coordinator_killed(aim: Aim) -> Struck:
    """SIGKILL to the coordinator, or to torchrun's store."""
    pod = aim.coordinator()
    return _killed(pod["metadata"]["name"], aim.site.main_process(pod))


def operator_killed(aim: Aim) -> Struck:
    """SIGKILL to the operator."""
    pod = pick(aim.site.operators(), aim.choice, "operator")
    return _killed(pod["metadata"]["name"], aim.site.main_process(pod))


def two_within_200_ms(aim: Aim) -> Struck:
    """Two agents, or an agent and the coordinator; at least one worker stays."""
    workers = aim.job.workers()
    if len(workers) < 3:
        raise Missed(f"only {len(workers)} workers train")
    pods = [pod for _, pod in workers]
    first = int(aim.choice * len(pods))
    second = pods[(first + 1) % len(pods)] if aim.choice * 100 % 2 < 1 else aim.coordinator()
    return _killed_together(aim.site, (pods[first], second), TOGETHER_SECONDS)


def whole_job_killed(aim: Aim) -> Struck:
    """The coordinator and all agents, so that nobody lives to report what was lost."""
    workers = [pod for _, pod in aim.job.workers()]
    require(bool(workers), "no worker trains")
    return _killed_together(aim.site, (aim.coordinator(), *workers), JOB_SECONDS)


def _killed_together(site: Site, pods: Sequence[Json], seconds: float) -> Struck:
    victims = [site.main_process(pod) for pod in pods]
    began = time.monotonic()
    for victim in victims:
        victim.kill()
    apart = time.monotonic() - began
    names = tuple(pod["metadata"]["name"] for pod in pods)
    shown = f"{', '.join(names[:-1])} and {names[-1]}"
    gone = until(lambda: all(victim.is_gone for victim in victims), GONE_SECONDS, 0.02)
    require(gone and apart < seconds, f"{shown} did not end together ({apart:.3f} s)", names)
    return Struck(f"process 1 of {shown} is gone, killed within {apart * 1000:.1f} ms", pods=names)


def _killed(what: str, process: Process) -> Struck:
    process.kill()
    require(until(lambda: process.is_gone, GONE_SECONDS, 0.02), f"{what} does not end")
    return Struck(f"{what} (process {process.pid}) is gone")


def rank_out_of_memory(aim: Aim) -> Struck:
    """The kernel kills a rank."""
    pods = _pod_names(aim)
    what, process = _rank_process(aim)
    kills = run_out(process)
    require(kills > 0, f"the kernel did not kill {what}", pods)
    return Struck(
        f"the kernel's OOM killer ended {kills} process(es) in the group of {what}", pods=pods
    )


def sidecar_killed(aim: Aim) -> Struck:
    """SIGKILL to a container beside the trainer. Kubernetes starts it again."""
    pod = aim.worker()[1]
    before = _sidecar(pod)
    process = aim.site.sidecar(pod)
    process.kill()

    def again() -> bool:
        name = pod["metadata"]["name"]
        found = [one for one in aim.job.pods("worker") if one["metadata"]["name"] == name]
        return bool(found) and _sidecar(found[0]) > before

    require(until(again, GONE_SECONDS), f"the sidecar of {pod['metadata']['name']} stays away")
    return Struck(f"the sidecar of {pod['metadata']['name']} was started again")


def _sidecar(pod: Json) -> int:
    """How often it was started again."""
    found = pod["status"].get("initContainerStatuses", ())
    return sum(one["restartCount"] for one in found if one["name"] == SIDECAR)


def ephemeral_storage_full(aim: Aim) -> Struck:
    """A worker's pod takes more of its node's disk than it may, so that it is evicted."""
    pod = aim.worker()[1]
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    (aim.site.scratch(pod) / "filler").write_bytes(bytes(2 * EPHEMERAL_BYTES))

    # The pod itself may be deleted soon after.
    selector = f"fieldSelector=reason=Evicted,involvedObject.uid={uid}"

    def evicted() -> bool:
        found = aim.site.api.request(
            "GET", f"/api/v1/namespaces/{aim.site.namespace}/events?{selector}"
        )
        return bool(found["items"])

    require(until(evicted, EVICTED_SECONDS), f"pod {name} is not evicted", (name,))
    return Struck(f"pod {name} is Evicted", pods=(name,))


def clock_wrong(aim: Aim) -> Struck:
    """The clock of a worker's processes is minutes ahead or behind; it moves while they run."""
    pod = aim.worker()[1]
    process, minutes = aim.site.main_process(pod), 7 if aim.choice < 0.5 else -7
    offset = aim.site.scratch(pod) / CLOCK_FILE
    offset.write_text(f"{60 * minutes}\n")
    found = until(lambda: abs(clock.ahead(process) - 60 * minutes) < 30, GONE_SECONDS)
    if not found:
        offset.unlink()
        raise Missed(f"the clock in {pod['metadata']['name']} did not change")
    return Struck(
        f"the clock in {pod['metadata']['name']} is {minutes:+} minutes off",
        partial(offset.unlink, missing_ok=True),
    )
