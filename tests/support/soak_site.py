"""Stands in for the cluster of a soak, for tests of what a fault does and sees there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from soak.aim import Aim
from soak.process import Process
from soak.site import Job, Site

Json = dict[str, Any]


def pod(name: str, node: str = "n1") -> Json:
    """One that runs."""
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }


class FakeSite:
    """A cluster whose processes are those that a test names."""

    def __init__(self, cluster: object = None, **mains: Process) -> None:
        self.cluster = cluster
        self._mains = mains

        self.repairs = 0

    def repair(self) -> bool:
        """All runs."""
        self.repairs += 1
        return True

    def main_process(self, pod: Json) -> Process:
        """Raises LookupError for a pod that the test has not named."""
        found = self._mains.get(pod["metadata"]["name"])
        if found is None:
            raise LookupError(f"pod {pod['metadata']['name']} has no process")
        return found


class FakeJob:
    """A job with these workers, by rank, and one pod through which they meet."""

    is_torchrun, meeting_role = False, "coordinator"

    def __init__(self, *workers: str, name: str = "gpt", volume: object = None) -> None:
        self.name, self.volume = name, volume
        self._workers = workers

    def workers(self) -> list[tuple[int, Json]]:
        """Rank and pod, each on a node of its own."""
        return [(rank, pod(name, f"n{rank + 1}")) for rank, name in enumerate(self._workers)]

    def pods(self, role: str) -> Sequence[Json]:
        """The coordinator's, or the workers'."""
        return [pod("c1")] if role == "coordinator" else [pod for _, pod in self.workers()]


def aim(site: object, job: object, choice: float = 0.0) -> Aim:
    """What a fault is meant for."""
    return Aim(cast(Site, site), cast(Job, job), choice)


class FakeCgroups:
    """Control groups that are folders of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, group: str) -> None:
        """With the file of its weight."""
        (self._folder / group).mkdir(parents=True)
        (self._folder / group / "cpu.weight").write_text("100")

    def remove(self, group: str) -> None:
        """As `rmdir` does."""
        (self._folder / group / "cpu.weight").unlink()
        (self._folder / group).rmdir()

    def hierarchies(self) -> tuple[Path, ...]:
        """The one."""
        return (self._folder,)


class FakeNode:
    """A node that notes what is done to it, and in which order with others."""

    def __init__(self, name: str, done: list[str], on_kill: Callable[[], object]) -> None:
        self.name, self.group, self.node = name, f"regroup/soak/{name}", self
        self._done, self._on_kill = done, on_kill
        self.plugged = True

    def partition(self) -> None:
        """Its link is down."""
        self._done.append(f"partition {self.name}")
        self.plugged = False

    def kill(self) -> None:
        """Its processes end."""
        self._done.append(f"kill {self.name}")
        self._on_kill()

    def start(self) -> None:
        """It boots."""
        self._done.append(f"start {self.name}")

    def is_plugged(self) -> bool:
        """Whether its link is up."""
        return self.plugged
