"""Do coordinator and agents of one job grow while its ranks die?

    make bench NAME=memory_growth [ARGS=--quick]

One job trains with DDP on three workers of one rank each, as `regroup run` starts it. Every fifty
steps a rank is killed, another one each time, and the others go on from their state in memory.
Coordinator and agents live through all of it: what they keep of a generation for ever would show.
The growth is the slope of a line through their resident memory after each fault, from the
twentieth on, in MB per hundred faults: of the coordinator, and of the agent that grows most.

For the operator see tests/operator/controller/test_memory_apiserver.py.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Plan, Values, command
from devcluster.processes import memory_mib
from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.job_status import CoordinatorStatus

OURS = "regroup"
UNITS = {
    "faults": "count",
    "coordinator_growth_mb": "MB per 100 faults",
    "agent_growth_mb": "MB per 100 faults",
    "coordinator_mb": "MiB",
    "agent_mb": "MiB",
}
FAULTS = {"ranks-killed": 240, "ranks-killed-quick": 3}
WORKERS = 3
STEPS_BETWEEN = 50
TRAIN = {
    "model": {"preset": "tiny"},
    "training": {
        "steps": 10**9,
        "globalBatchSize": 6,
        "microBatchSize": 2,
        "sequenceLength": 64,
    },
}
NEW_FAULTS = 20
"""In which each path of the programs is taken for the first time."""
FAULT_SECONDS = 180.0
"""Within which the next fault has to come."""


def plan(quick: bool) -> Plan:
    """240 faults; a quick run has three."""
    case = "ranks-killed-quick" if quick else "ranks-killed"
    settings = f"GPT, ddp, {WORKERS} workers; growth after the first {NEW_FAULTS} faults"
    return Plan("memory_growth", (case,), (OURS,), UNITS, 1, lambda _case, _subject: settings)


def measure(case: str, _subject: str) -> Values:
    """All faults of a case. Raises TimeoutError when the training does not go on."""
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        course = GrowthCourse(FAULTS[case])
        asyncio.run(course.play(LocalRun(desired(Path(folder)))))
    new = NEW_FAULTS if course.faults > NEW_FAULTS + 2 else 0
    return {
        "faults": course.faults,
        "coordinator_growth_mb": growth(course.coordinator[new:]),
        "agent_growth_mb": max(growth(sizes[new:]) for sizes in course.agents.values()),
        "coordinator_mb": course.coordinator[-1],
        "agent_mb": max(sizes[-1] for sizes in course.agents.values()),
    }


def growth(sizes: Sequence[float]) -> float:
    """Of a process with these sizes after one fault each: the slope per hundred faults."""
    return 100 * statistics.linear_regression(range(len(sizes)), sizes).slope


@dataclass
class GrowthCourse:
    """Kills ranks in turn, and notes the sizes of the processes that live on."""

    most: int
    faults: int = 0
    coordinator: list[float] = field(default_factory=list)
    """MiB, after each fault."""
    agents: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By the worker's index."""
    _next_step: int = STEPS_BETWEEN

    async def play(self, run: LocalRun) -> None:
        """Train until all faults have struck. Raises TimeoutError."""
        struck = asyncio.Event()
        run.on_status = lambda status: self._look(run, status, struck)
        playing = asyncio.create_task(run.run())
        try:
            while self.faults < self.most:
                struck.clear()
                async with asyncio.timeout(FAULT_SECONDS):
                    await struck.wait()
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    def _look(self, run: LocalRun, status: CoordinatorStatus, struck: asyncio.Event) -> None:
        step = status.progress.step if status.progress else 0
        trains = status.phase == "running" and status.world_size == WORKERS
        if not trains or step < self._next_step or not run.kill_rank(self.faults % WORKERS):
            return
        self.faults += 1
        self._next_step = step + STEPS_BETWEEN
        assert run.coordinator is not None
        self.coordinator.append(memory_mib(run.coordinator.popen.pid))
        for index, agent in run.agents.items():
            self.agents[index].append(memory_mib(agent.popen.pid))
        struck.set()


def desired(folder: Path) -> Desired:
    """A job without end, whose ranks may be killed without end."""
    return Desired(
        revision=1,
        namespace="bench",
        job="memory",
        replicas=WORKERS,
        min_replicas=1,
        max_replicas=WORKERS,
        max_restarts=1_000_000,
        train=TrainConfig.model_validate(TRAIN),
        directory=str(folder),
    )


main = command(plan, measure)

if __name__ == "__main__":
    main()
