"""The subjects of bench/any_script.py: one script under three launchers, on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regroup.local.local_run import POLL_SECONDS, REPLACE_SECONDS, LocalRun
from regroup.local.log_lines import LogLines
from regroup.local.processes import (
    ADDRESS,
    dies_with,
    kill_rank_of_torchrun,
    kill_with_descendants,
)
from regroup.local.torchrun_run import TorchrunRun, Wanted
from regroup_operator.api.user_script import Script
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.system.machine_address import free_port

RESTARTS = 100


class ScriptRun(Protocol):
    """A script on workers."""

    async def run(self) -> object:
        """Run it to its end."""

    def kill_worker(self, index: int) -> bool:
        """Kill an agent and its ranks."""

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank."""


@dataclass(frozen=True)
class ScriptJob:
    """What is run."""

    script: tuple[str, ...]
    """Its path and arguments."""
    folder: Path
    """Of the logs."""
    workers: int
    on_line: Callable[[str], None]
    """Called with each line that a rank prints."""


def make_run(subject: str, job: ScriptJob) -> ScriptRun:
    """A run of the job under a launcher."""
    job.folder.mkdir()
    makers: dict[str, Callable[[ScriptJob], ScriptRun]] = {
        "regroup": regroup,
        "regroup-torchrun": regroup_torchrun,
        "torchrun": Stock,
    }
    return makers[subject](job)


def regroup(job: ScriptJob) -> ScriptRun:
    """As a job with `launcher: regroup`."""
    return LocalRun(
        Desired(
            revision=1,
            namespace="bench",
            job="any-script",
            replicas=job.workers,
            min_replicas=job.workers,
            max_replicas=job.workers,
            train=TrainConfig(),
            directory=str(job.folder),
            script=job.script,
        ),
        on_line=job.on_line,
    )


def regroup_torchrun(job: ScriptJob) -> ScriptRun:
    """As a job with `launcher: torchrun`."""
    return TorchrunRun(
        Wanted(
            job="any-script",
            script=Script("python", job.script),
            replicas=job.workers,
            nnodes=f"{job.workers}:{job.workers}",
            ranks=1,
            max_restarts=RESTARTS,
            working_directory=job.folder,
            directory=job.folder,
        ),
        on_line=job.on_line,
    )


class Stock:
    """Stock torchrun: an agent per worker, the first has the store. What ends with a failure is
    started again, as the pods of a StatefulSet or an indexed Job are.
    """

    def __init__(self, job: ScriptJob) -> None:
        self._job = job
        self._port = free_port()
        self._agents: list[subprocess.Popen[bytes] | None] = [None] * job.workers
        self._start_at = [0.0] * job.workers
        self._lines = [LogLines(self._log(index)) for index in range(job.workers)]

    async def run(self) -> None:
        """Run until all agents have ended well."""
        try:
            while any(agent is None or agent.poll() != 0 for agent in self._agents):
                self._keep()
                self._report_lines()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for index in range(len(self._agents)):
                self.kill_worker(index)
            self._report_lines()

    def kill_worker(self, index: int) -> bool:
        """Kill an agent and its ranks; False when it does not run."""
        agent = self._agents[index]
        if agent is None or agent.poll() is not None:
            return False
        kill_with_descendants(agent)
        return True

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank; False when it does not run."""
        return kill_rank_of_torchrun((agent.pid for agent in self._agents if agent), rank)

    def _keep(self) -> None:
        now = asyncio.get_running_loop().time()
        for index, agent in enumerate(self._agents):
            if agent is not None and agent.poll():
                self._agents[index], self._start_at[index] = None, now + REPLACE_SECONDS
            elif agent is None and now >= self._start_at[index]:
                self._agents[index] = self._start(index)

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        with self._log(index).open("ab") as log:
            return subprocess.Popen(
                self._command(index),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - see regroup.local.processes
            )

    def _command(self, index: int) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nnodes={len(self._agents)}",
            "--nproc-per-node=1",
            f"--max-restarts={RESTARTS}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={ADDRESS}:{self._port}",
            "--rdzv-id=any-script",
            # All workers have one address here, so that torchrun cannot see who has the store.
            f"--rdzv-conf=is_host={int(index == 0)}",
            f"--local-addr={ADDRESS}",
            *self._job.script,
        ]

    def _report_lines(self) -> None:
        for lines in self._lines:
            for line in lines.new():
                self._job.on_line(line)

    def _log(self, index: int) -> Path:
        return self._job.folder / f"worker-{index}.log"
