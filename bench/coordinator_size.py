"""Memory and CPU of a coordinator by the size of its job.

    make bench NAME=coordinator_size [ARGS="--case 64x1"]

A case is agents x ranks of each. The coordinator is the real process. Agents without ranks connect
to it from another process over WebSockets, and report what they report at most: the steps of all
their ranks once a second. An operator watches. The model is sharded, so that each rank has a shard
of the memory snapshots.

CPU is CPU seconds of the process, never elapsed time, so that other work on the machine changes
little. `training_millicores` is the CPU seconds of a round of reports and heartbeats, divided by
the second between two rounds: above 1000 the one thread does not keep up. The coordinator's
time-outs are long, so that a slow machine loses nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from bench.coordinator_agents import AgentGroup
from bench.harness import Plan, Values, command
from devcluster.processes import cpu_seconds, memory_mib
from regroup.local.processes import (
    ADDRESS,
    NODE_OF_COORDINATOR,
    LocalProcess,
    Place,
    start_coordinator,
)
from regroup_trainer.protocol.config import ParallelismConfig, TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.rank_messages import AGENT_PROGRESS_SECONDS
from regroup_trainer.system.machine_address import free_port

OURS = "regroup"
CASES = ("8x1", "64x1", "256x1", "512x1", "32x8", "128x8")
REPORTS = 1600
"""Of all ranks together, and at least three of each."""
QUICK_ROUNDS = 2
STATUSES = 5
START_SECONDS = 60.0
UNITS = {
    "rss_mb": "MiB",
    "rss_peak_mb": "MiB",
    "recovery_peak_mb": "MiB",
    "status_peak_mb": "MiB",
    "training_millicores": "mCPU",
    "start_cpu_seconds": "s",
    "snapshot_cpu_seconds": "s",
    "recovery_cpu_seconds": "s",
    "status_cpu_ms": "ms",
    "status_kib": "KiB",
}


def plan(quick: bool) -> Plan:
    """All sizes, or the smallest one."""
    if quick:
        return Plan("coordinator_size", ("8x1-quick",), (OURS,), UNITS, 1)
    settings = f"fsdp, {REPORTS} reports or three of each rank, {STATUSES} statuses"
    return Plan("coordinator_size", CASES, (OURS,), UNITS, 1, lambda _case, _subject: settings)


def measure(case: str, _subject: str) -> Values:
    """The life of one job: start, training, a memory snapshot, a status, a lost worker."""
    size, _, quick = case.partition("-")
    workers, ranks = map(int, size.split("x"))
    rounds = QUICK_ROUNDS if quick else max(3, REPORTS // (workers * ranks))
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as name:
        return asyncio.run(_measure(Path(name), workers, ranks, rounds))


async def _measure(folder: Path, workers: int, ranks: int, rounds: int) -> Values:
    with coordinator(folder, workers) as (process, url, token, desired):
        usage = Usage(process.popen.pid)
        async with watched(url, token, process) as session:
            group = AgentGroup(url, token, desired, ranks, session)
            values = await _phases(group, usage, rounds)
            await group.close()
        return values


async def _phases(group: AgentGroup, usage: Usage, rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    await group.start()
    found["start_cpu_seconds"] = usage.cpu_since_last()
    started_peak = usage.peak_mib_since_last()
    for _ in range(rounds):
        await group.round()
    await group.until_idle()
    seconds = usage.cpu_since_last()
    found["training_millicores"] = 1000 * seconds / rounds / AGENT_PROGRESS_SECONDS
    found["rss_mb"] = usage.rss_mib()
    await group.snapshot()
    found["snapshot_cpu_seconds"] = usage.cpu_since_last()
    trained_peak = usage.peak_mib_since_last()
    found |= await _statuses(group, usage)
    await group.replace(0)
    found["recovery_cpu_seconds"] = usage.cpu_since_last()
    found["recovery_peak_mb"] = usage.peak_mib_since_last()
    peaks = found["recovery_peak_mb"], found["status_peak_mb"]
    return found | {"rss_peak_mb": max(started_peak, trained_peak, *peaks)}


async def _statuses(group: AgentGroup, usage: Usage) -> dict[str, float]:
    """What the operator, and a scraper of metrics, ask for."""
    usage.cpu_since_last()
    size = 0
    for _ in range(STATUSES):
        async with group.session.get(f"{group.url}/v1/status", raise_for_status=True) as answer:
            size = len(await answer.read())
    milliseconds = 1000 * usage.cpu_since_last() / STATUSES
    async with group.session.get(f"{group.url}/metrics", raise_for_status=True) as answer:
        await answer.read()
    peak = usage.peak_mib_since_last()
    usage.cpu_since_last()
    return {"status_cpu_ms": milliseconds, "status_kib": size / 1024, "status_peak_mb": peak}


class Usage:
    """Memory and CPU of a process, as the kernel counts them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = 0.0

    def cpu_since_last(self) -> float:
        """CPU seconds since the last call."""
        now = cpu_seconds(self._pid)
        spent, self._cpu = now - self._cpu, now
        return spent

    def rss_mib(self) -> float:
        """Resident memory now."""
        return memory_mib(self._pid)

    def peak_mib_since_last(self) -> float:
        """The most resident memory since the last call."""
        peak = memory_mib(self._pid, "VmHWM")
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        return peak


@contextmanager
def coordinator(folder: Path, workers: int) -> Iterator[tuple[LocalProcess, str, str, Desired]]:
    """The process, its URL, its token, and what its job should be."""
    place, token = make_place(folder)
    desired = make_desired(place, workers).model_copy(
        update={
            "timeout_milliseconds": 3_600_000,
            "train": TrainConfig(parallelism=ParallelismConfig(strategy="fsdp")),
        }
    )
    process = start_coordinator(place, 1, desired)
    try:
        yield process, f"http://{ADDRESS}:{place.port}", token, desired
    finally:
        process.kill()


def make_place(folder: Path) -> tuple[Place, str]:
    """Where the coordinators of a job run that has no real agents, and its token."""
    token_file, token = folder / "token", secrets.token_hex(16)
    token_file.write_text(token)
    place = Place(
        job="gpt-pretrain",
        port=free_port(),
        token_file=token_file,
        logs=folder,
        ranks=1,
        threads=None,
        entry="",
        working_directory=folder,
        variables={},
    )
    return place, token


def make_desired(place: Place, workers: int) -> Desired:
    """Its job: all workers, and no judgement about hangs."""
    return Desired(
        revision=1,
        namespace="bench",
        job=place.job,
        replicas=workers,
        min_replicas=workers,
        max_replicas=workers,
        progress_timeout_seconds=3600,
        train=TrainConfig(),
        directory=str(place.logs / NODE_OF_COORDINATOR),
    )


@asynccontextmanager
async def watched(
    url: str, token: str, process: LocalProcess
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for the agents, once the coordinator answers, while an operator watches."""
    headers = {"Authorization": f"Bearer {token}"}
    many, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, connector=many, timeout=patience) as session:
        await _until_it_answers(session, url, process)
        watching = asyncio.create_task(_watch(session, url))
        yield session
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url}/v1/watch", params={"every": "5"}) as answer:
        async for _ in answer.content.iter_any():
            pass


async def _until_it_answers(
    session: aiohttp.ClientSession, url: str, process: LocalProcess
) -> None:
    async with asyncio.timeout(START_SECONDS):
        while process.exit_code is None:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"{url}/healthz"):
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"the coordinator ended: {process.log.read_text()}")


main = command(plan, measure)

if __name__ == "__main__":
    main()
