"""Subjects `torchrun`, `torchrun-tuned` and `ft_launcher` of bench/recovery.py: elastic agents,
c10d rendezvous.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.nodes import CONTROL, Nodes
from bench.outcome import Step
from bench.recovery_settings import LEAST_WORKERS, LOST_SECONDS, PYTHON_PATH, SAVE_EVERY, WORKERS
from bench.recovery_subject import Subject
from regroup_operator.render.torchrun_commands import OWN_STORES, SETTINGS, store_command

PORT = 29400
JOB = str(Path(__file__).with_name("recovery_job.py"))
TORCHRUN = "torch.distributed.run"
FT_LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
ACTION = re.compile(
    rb"Traceback|failed \(exitcode|closing signal|heartbeat\. Waited|Detected quorum change"
)
"""What agents, ranks and torchft's lighthouse write to their logs when they act on a fault."""


@dataclass(frozen=True)
class Launcher:
    """One way to start the agents."""

    module: str = TORCHRUN
    rendezvous: str = ""
    own_store: bool = False
    """The store is on the control plane, and not in the first worker."""
    collective_seconds: float = 0.0
    """Time limit of a collective; 0: torch's default."""
    options: tuple[str, ...] = ()


STOCK = Launcher()
TUNED = Launcher(rendezvous=SETTINGS, own_store=True, collective_seconds=LOST_SECONDS)
FT = Launcher(
    module=FT_LAUNCHER,
    rendezvous=SETTINGS,
    own_store=True,
    options=(
        "--ft-initial-rank-heartbeat-timeout=60",
        f"--ft-rank-heartbeat-timeout={LOST_SECONDS}",
        "--ft-workload-check-interval=0.5",
        "--ft-enable-nic-monitor=False",
    ),
)


class Torchrun(Subject):
    """Agents on the nodes."""

    def __init__(self, nodes: Nodes, folder: Path, workers: int, launcher: Launcher) -> None:
        super().__init__(nodes, folder, workers)
        self.control_node = CONTROL if launcher.own_store else 1
        self._launcher = launcher
        self._attempt = 0
        self._world_size = 0
        self._ranks: set[int] = set()
        self._logs: dict[Path, int] = {}
        self._noticed: float | None = None

    def start_control(self) -> subprocess.Popen[bytes]:
        """Start the store of the next attempt, and end the agents of the last one."""
        self._attempt += 1
        for worker in self.workers.values():
            self.nodes.kill(worker.node)
        command = store_command(sys.executable, f"bench-{self._attempt}", PORT)
        return self.nodes.start(CONTROL, command, {}, self.folder / "store.log")

    def start_worker(self, index: int, node: int) -> subprocess.Popen[bytes]:
        """Start an agent."""
        return self.nodes.start(
            node, self._command(node), self._variables(), self.folder / f"w{index}.log"
        )

    def _command(self, node: int) -> Sequence[str]:
        launcher = self._launcher
        return [
            sys.executable,
            "-m",
            launcher.module,
            f"--nnodes={LEAST_WORKERS}:{WORKERS}",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.nodes.address(self.control_node)}:{PORT}",
            f"--rdzv-id=bench-{self._attempt}",
            *([f"--rdzv-conf={launcher.rendezvous}"] if launcher.rendezvous else []),
            f"--local-addr={self.nodes.address(node)}",
            "--max-restarts=100",
            *launcher.options,
            JOB,
            str(self.folder),
            str(SAVE_EVERY),
            str(launcher.collective_seconds),
        ]

    def _variables(self) -> dict[str, str]:
        own_stores = OWN_STORES if self._launcher.own_store else {}
        return {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONPATH": PYTHON_PATH,
            **own_stores,
        }

    # --- what can be seen -------------------------------------------------------------------------

    def look(self) -> None:
        """Read the steps of rank 0; check whether a part has acted on the fault."""
        if self._noticed is None and self._acts():
            self._noticed = time.time()
        for _, line in self.new_lines("steps-*.jsonl"):
            note: Any = line
            self._world_size = note["size"]
            self._steps.append(Step(note["generation"], note["step"], note["time"], note["loss"]))

    def watch(self, node: int | None, pid: int) -> None:
        """Prepare to detect the fault: a rank that it does not strike ends, or the agent of such a
        rank logs an ACTION.
        """
        self._noticed = None  # a first step that torchft did not commit was no fault
        living = {
            index: worker.node for index, worker in self.workers.items() if worker.node != node
        }
        running = [
            item for other in living.values() for item in self.nodes.processes(other).items()
        ]
        self._ranks = {other for other, name in running if name.startswith("rank-")} - {pid}
        for index in living:
            self._watch_log(f"w{index}.log")

    def _watch_log(self, name: str) -> None:
        log = self.folder / name
        self._logs[log] = log.stat().st_size

    def _acts(self) -> bool:
        """Whether a rank or an agent that `watch` chose has acted on the fault."""
        ended = any(not Path("/proc", str(pid)).exists() for pid in self._ranks)
        return ended or any(
            ACTION.search(log.read_bytes()[size:]) for log, size in self._logs.items()
        )

    def detected(self, since: float) -> float | None:
        """The time of detection; see `watch`."""
        return self._noticed if self._noticed is not None and self._noticed > since else None

    def world_size(self) -> int:
        """The world size that rank 0 recorded last."""
        return self._world_size
