"""Subject `torchft` of bench/recovery.py: a replica group on each node, the lighthouse on the
control plane.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.nodes import CONTROL, Nodes
from bench.recovery_settings import LEAST_WORKERS, LOST_SECONDS
from bench.recovery_torchrun import STOCK, TORCHRUN, Torchrun

PORT, STORE_PORT = 29510, 29400
JOB = str(Path(__file__).with_name("torchft_job.py"))
LIGHTHOUSE_LOG = "lighthouse.log"
LIGHTHOUSE = f"""
import time
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="[::]:{PORT}",
    min_replicas={LEAST_WORKERS},
    quorum_tick_ms=50,
    heartbeat_timeout_ms={LOST_SECONDS * 1000:.0f},
)
while True:
    time.sleep(1000)
"""
SETTINGS = (
    f"heartbeats lost after {LOST_SECONDS} s, join timeout as by default (0.1 s), "
    f"collectives and calls of its manager time out after {LOST_SECONDS} s"
)


class Torchft(Torchrun):
    """Replica groups, each under a torchrun of its own."""

    def __init__(self, nodes: Nodes, folder: Path, workers: int) -> None:
        super().__init__(nodes, folder, workers, STOCK)
        self.control_node = CONTROL

    def start_control(self) -> subprocess.Popen[bytes]:
        """Start the lighthouse, for which the replica groups wait."""
        return self.nodes.start(
            CONTROL, [sys.executable, "-c", LIGHTHOUSE], {}, self.folder / LIGHTHOUSE_LOG
        )

    def start_worker(self, index: int, node: int) -> subprocess.Popen[bytes]:
        """Start a replica group."""
        address = self.nodes.address(node)
        lighthouse = f"http://{self.nodes.address(CONTROL)}:{PORT}"
        command = [
            sys.executable,
            "-m",
            TORCHRUN,
            "--nnodes=1",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
        ]
        command += [
            f"--rdzv-endpoint={address}:{STORE_PORT}",
            f"--local-addr={address}",
            "--max-restarts=100",
        ]
        command += [
            JOB,
            str(self.folder),
            f"replica-{index}",
            address,
            lighthouse,
            str(LOST_SECONDS),
        ]
        return self.nodes.start(node, command, self._variables(), self.folder / f"w{index}.log")

    def watch(self, node: int | None, pid: int) -> None:
        """As for torchrun, and the lighthouse acts when it continues with other groups."""
        super().watch(node, pid)
        if node != CONTROL:
            self._watch_log(LIGHTHOUSE_LOG)

    def look(self) -> None:
        """Read new steps; a step that was not committed counts as detection, too."""
        super().look()
        for _, line in self.new_lines("noticed-*.jsonl"):
            note: Any = line
            self._noticed = min(self._noticed or note["time"], note["time"])
