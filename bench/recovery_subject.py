"""What the subjects of the recovery benchmark share: workers on nodes, and the operator's part.

This module replaces dead parts, in the same way for all subjects. A dead worker gets a replacement
on its node, and the worker of a lost node on the spare one. A dead control plane is started again.
The delays are in `recovery_settings`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from bench.nodes import CONTROL, Nodes
from bench.outcome import Step
from bench.recovery_settings import REPLACE_NODE_SECONDS, REPLACE_SECONDS, WORKERS

NODES = WORKERS + 1
"""One of them has no worker at first."""


class NotTrainingError(Exception):
    """A training did not come as far as expected in time."""


@dataclass
class Worker:
    """A started worker."""

    node: int
    process: subprocess.Popen[bytes]

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None


class Subject(ABC):
    """A training on nodes. `keep` must be called every few milliseconds."""

    control_node = CONTROL
    """The node of the workers' meeting point. On a worker's node, it is a part of the worker."""

    def __init__(self, nodes: Nodes, folder: Path, workers: int) -> None:
        self.nodes = nodes
        self.folder = folder
        self.desired_workers = workers
        self.workers: dict[int, Worker] = {}
        self.control: subprocess.Popen[bytes] | None = None
        self._lost_nodes: dict[int, float] = {}
        self._due: dict[int | None, float] = {}
        self._seen: dict[Path, int] = {}
        self._steps: list[Step] = []

    # --- the operator's part ----------------------------------------------------------------------

    def keep(self) -> None:
        """Start the missing parts whose delay is over."""
        now = time.monotonic()
        if self.control_node == CONTROL and self._is_due(None, self.control, now):
            self.control = self.start_control()
        for index in range(self.desired_workers):
            worker = self.workers.get(index)
            if worker is not None and worker.runs() and worker.node not in self._lost_nodes:
                continue
            node = self._free_node(index)
            if node is not None and self._is_due(index, worker.process if worker else None, now):
                self.workers[index] = Worker(node, self.start_worker(index, node))

    def _is_due(self, what: int | None, former: subprocess.Popen[bytes] | None, now: float) -> bool:
        """Whether to start a part: it is new, or its delay is over."""
        lost = self._lost_nodes.get(self.workers[what].node) if what in self.workers else None
        if former is not None and former.poll() is None and lost is None:
            return False
        since = now + REPLACE_SECONDS if lost is None else lost + REPLACE_NODE_SECONDS
        due = self._due.setdefault(what, since if former is not None else now)
        if now < due:
            return False
        del self._due[what]
        return True

    def _free_node(self, index: int) -> int | None:
        """Where to start a worker: its first node, else another that nobody is on."""
        taken = {
            worker.node
            for other, worker in self.workers.items()
            if other != index and worker.runs()
        }
        candidates = [index + 1, *range(1, self.nodes.count + 1)]
        return next(
            (node for node in candidates if node not in taken and node not in self._lost_nodes),
            None,
        )

    def lose(self, node: int) -> None:
        """Mark a node as lost."""
        self._lost_nodes[node] = time.monotonic()

    def regain(self, node: int) -> None:
        """A node that lost power is there again, empty."""
        self.nodes.plug(node)
        self._lost_nodes.pop(node, None)

    @abstractmethod
    def start_worker(self, index: int, node: int) -> subprocess.Popen[bytes]:
        """Start a worker on a node."""

    def start_control(self) -> subprocess.Popen[bytes]:
        """Start the workers' meeting point on the control plane."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """The run is over; the nodes will end what is on them."""

    def kill_control(self) -> None:
        """SIGKILL to the workers' meeting point."""
        self.nodes.kill(self.control_node)

    def scale(self, workers: int) -> None:
        """Set the number of desired workers. The last ones are asked to leave."""
        self.desired_workers = workers
        for index in [index for index in self.workers if index >= workers]:
            self.workers.pop(index).process.terminate()

    def terminate(self, node: int) -> None:
        """Ask the worker of a node to leave, as the end of its pod does."""
        for worker in self.workers.values():
            if worker.node == node:
                worker.process.terminate()

    # --- what can be seen -------------------------------------------------------------------------

    @abstractmethod
    def look(self) -> None:
        """Read new steps; called often."""

    @property
    def steps(self) -> list[Step]:
        """The committed steps in order of time."""
        return self._steps

    @abstractmethod
    def world_size(self) -> int:
        """World size of the generation that trains now; 0 if none does."""

    def watch(self, node: int | None, pid: int) -> None:  # noqa: B027 - some prepare nothing
        """A fault is about to strike all of a node, or only the process of rank 0."""

    @abstractmethod
    def detected(self, since: float) -> float | None:
        """When a part first acted on a fault after the time `since` that did not strike it.

        None: not yet.
        """

    def node_of(self, rank: int) -> tuple[int, int]:
        """The node and the process id of a rank. Raises NotTrainingError."""
        found = self.nodes.find(f"rank-{rank}")
        if found is None:
            raise NotTrainingError(f"rank {rank} does not run")
        return found

    def new_lines(self, pattern: str) -> list[tuple[Path, dict[str, object]]]:
        """Whole lines of JSON in files of the folder that were not read before."""
        found = []
        for path in sorted(self.folder.glob(pattern), key=os.path.getmtime):
            with path.open("rb") as file:
                file.seek(self._seen.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            self._seen[path] = self._seen.get(path, 0) + (len(whole) + 1 if whole else 0)
            found += [(path, json.loads(line)) for line in whole.splitlines()]
        return found
