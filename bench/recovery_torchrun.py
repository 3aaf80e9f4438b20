"""Subjects `torchrun` and `torchrun-tuned` of bench/recovery.py: stock elastic agents with the c10d rendezvous."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import torchrun_job
from bench.outcome import FAILED, Step, outcome
from bench.recovery_regroup import BEYOND, ENOUGH, RECOVER_SECONDS, SAVE_EVERY, START_SECONDS

WORKERS = 3
TUNED = (
    "join_timeout=600,last_call_timeout=1,close_timeout=5,"
    "read_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
)
"""The quickest settings of the rendezvous that recovered reliably."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A store for each world: with the shared one a new world reads the addresses of the last one."""
REPLACE_SECONDS = 1.0


@dataclass
class Agents:
    """Three torchrun agents; the first hosts the rendezvous, as `--rdzv-endpoint` says. Dead ones come back."""

    folder: Path
    port: int
    settings: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)

    def keep(self) -> None:
        """Start those that are not running, a second after they died."""
        for index in range(WORKERS):
            agent = self.running.get(index)
            if agent is not None and agent.poll() is None:
                continue
            died = self.gone.setdefault(index, time.monotonic() if agent else 0.0)
            if time.monotonic() - died >= REPLACE_SECONDS:
                self.running[index] = self._start()
                del self.gone[index]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=2:{WORKERS}", "--nproc-per-node=1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench"]
        command += [f"--rdzv-conf={self.settings}"] if self.settings else []
        command += ["--max-restarts=10", torchrun_job.__file__, str(self.folder), str(SAVE_EVERY)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        with (self.folder / "torchrun.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def kill(self, index: int) -> None:
        """Kill an agent and its worker, as the end of a pod does."""
        for pid in [self.running[index].pid, *children(self.running[index].pid)]:
            kill(pid)
        self.running[index].wait()

    def stop(self) -> None:
        """End all."""
        for index in self.running:
            self.kill(index)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def stock(case: str, folder: Path) -> dict[str, float | None]:
    """One kill, default settings."""
    return _measure(case, Agents(folder, _free_port()))


def tuned(case: str, folder: Path) -> dict[str, float | None]:
    """One kill, the best settings."""
    return _measure(case, Agents(folder, _free_port(), TUNED, OWN_STORE))


def _measure(case: str, agents: Agents) -> dict[str, float | None]:
    try:
        rank_0 = _wait_at_risk(agents)
        owner = next((i for i, agent in agents.running.items() if rank_0 in children(agent.pid)), 0)
        killed = time.time()
        if case == "rank-kill":
            kill(rank_0)
        else:
            agents.kill(owner if case == "pod-kill" else 0)
        return _wait_outcome(agents, killed)
    finally:
        agents.stop()


def steps(folder: Path) -> list[Step]:
    """What the job has noted."""
    file = folder / "steps.jsonl"
    if not file.exists():
        return []
    whole = file.read_text().rpartition("\n")[0]
    return [Step(str(one["world"]), one["step"], one["time"]) for one in map(json.loads, whole.splitlines())]


def _wait_at_risk(agents: Agents) -> int:
    """Wait for steps beyond a save; the process of rank 0. Raises TimeoutError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        agents.keep()
        done = steps(agents.folder)
        if done and done[-1].step > SAVE_EVERY and done[-1].step % SAVE_EVERY >= BEYOND:
            return int(done[-1].world)
        time.sleep(0.01)
    raise TimeoutError(f"torchrun did not train within {START_SECONDS:.0f} s: see {agents.folder / 'torchrun.log'}")


def _wait_outcome(agents: Agents, killed: float) -> dict[str, float | None]:
    deadline = time.monotonic() + RECOVER_SECONDS
    while time.monotonic() < deadline:
        agents.keep()
        found = outcome(steps(agents.folder), killed, ENOUGH)
        if found:
            return found
        time.sleep(0.02)
    return FAILED


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
