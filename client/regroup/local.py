"""A TrainingJob on this machine alone: the real coordinator, agents and ranks; only the operator is played here.

Agents stand for nodes, a folder for the volume. The operator's part is small: keep as many workers as are wanted,
replace a dead one under its index, restart a dead coordinator under the next term, pass wishes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from regroup.coordinator_client import CoordinatorClient
from regroup.faults import Fault
from regroup.processes import (
    ADDRESS,
    LocalProcess,
    Place,
    find_rank,
    kill_process,
    start_agent,
    start_coordinator,
    strike,
)
from regroup_trainer.contract import Desired
from regroup_trainer.job_status import CoordinatorStatus, Recovery, Verdict

POLL_SECONDS = 0.05
REPLACE_SECONDS = 1.0
"""A dead worker's replacement starts so much later, as a pod would."""
END_SECONDS = 20.0
"""After the verdict, processes that have not ended are killed."""
RANK_ENTRY = "regroup_trainer.rank"


class LocalRunError(Exception):
    """A local process could not do its work; the message says which and shows the end of its log."""


@dataclass
class LocalRun:
    """One run of one job. `run` plays it to its end; the other methods may be called meanwhile, from the same loop."""

    desired: Desired
    ranks: int = 1
    """Rank processes per worker."""
    faults: Sequence[Fault] = ()
    on_status: Callable[[CoordinatorStatus], None] = lambda _status: None
    on_note: Callable[[str], None] = lambda _note: None
    """Hears what is done to the processes: faults, replacements."""
    entry: str = RANK_ENTRY
    working_directory: Path = field(default_factory=Path.cwd)
    """Of the workers: relative paths of a script of the user's own begin there."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """For the environment of the workers."""
    replace_seconds: float = REPLACE_SECONDS
    status: CoordinatorStatus | None = None
    """The newest."""
    recoveries: dict[tuple[int, int], Recovery] = field(default_factory=dict)
    """(term, sequence) -> record, over all coordinators of this run."""
    agents: dict[int, LocalProcess] = field(default_factory=dict)
    coordinator: LocalProcess | None = None
    _start: float = 0.0
    _term: int = 0
    _incarnation: int = 0
    _replace_at: dict[int, float] = field(default_factory=dict)
    _pending: list[Fault] = field(default_factory=list)
    _place: Place | None = None
    _client: CoordinatorClient | None = None

    async def run(self) -> Verdict:
        """Train to the end; returns how it ended. Raises LocalRunError."""
        directory = Path(self.desired.directory)
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        self._term = newest_term(directory)
        self._pending = list(self.faults)
        self._start = asyncio.get_running_loop().time()
        with tempfile.TemporaryDirectory(prefix="regroup-local-") as private:
            token = secrets.token_hex(16)
            self._place = self._make_place(Path(private), directory / "logs", token)
            async with CoordinatorClient(f"http://{ADDRESS}:{self._place.port}", token) as self._client:
                try:
                    return await self._play(self._place)
                finally:
                    self._kill_all()

    def _make_place(self, private: Path, logs: Path, token: str) -> Place:
        token_file = private / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        processes = self.desired.replicas * self.ranks
        threads = max(1, len(os.sched_getaffinity(0)) // processes)
        return Place(
            job=self.desired.job,
            port=_free_port(),
            token_file=token_file,
            logs=logs,
            ranks=self.ranks,
            threads=threads,
            entry=self.entry,
            working_directory=self.working_directory,
            variables=self.variables,
        )

    # --- playing the operator --------------------------------------------------------------------------------------

    async def _play(self, place: Place) -> Verdict:
        while True:
            self._keep_coordinator(place)
            self._keep_workers(place)
            await self._observe()
            if self.status is not None and self.status.verdict is not None:
                await self._wind_up()
                return self.status.verdict
            self._inject()
            await asyncio.sleep(POLL_SECONDS)

    def _keep_coordinator(self, place: Place) -> None:
        if self.coordinator is not None and self.coordinator.exit_code is None:
            return
        if self.coordinator is not None:
            _require_started(self.coordinator, self.status is not None)
            self.on_note(f"the coordinator is gone; starting one for term {self._term + 1}")
        self._term += 1
        seed = self.status.ledger if self.status else self.desired.seed
        self.desired = self.desired.model_copy(update={"seed": seed})
        self.coordinator = start_coordinator(place, self._term, self.desired)

    def _keep_workers(self, place: Place) -> None:
        now = asyncio.get_running_loop().time()
        for index, agent in list(self.agents.items()):
            if agent.exit_code is not None:
                del self.agents[index]
                if index < self.desired.workers:
                    self.on_note(f"worker {index} is gone (exit code {agent.exit_code})")
                    _require_started(agent, self.status is not None and self.status.generation is not None)
                    self._replace_at[index] = now + self.replace_seconds
        for index in range(self.desired.workers):
            if index not in self.agents and now >= self._replace_at.get(index, 0.0) and not self.desired.suspend:
                self.agents[index] = start_agent(place, index, self._incarnation)
                self._incarnation += 1

    async def _observe(self) -> None:
        assert self._client is not None
        try:
            self.status = keep_progress(await self._client.status(), self.status)
            if self.status.revision < self.desired.revision:
                await self._client.wish(self.desired)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return
        for recovery in self.status.recoveries:
            self.recoveries[self.status.term, recovery.sequence] = recovery
        self.on_status(self.status)

    def _inject(self) -> None:
        step = self.status.progress.step if self.status and self.status.progress else 0
        seconds = asyncio.get_running_loop().time() - self._start
        for fault in [fault for fault in self._pending if fault.is_due(step, seconds)]:
            if self._strike(fault):
                self._pending.remove(fault)
                self.on_note(f"killed {fault}")

    def _strike(self, fault: Fault) -> bool:
        """Do it; False when there is nothing to kill right now."""
        if fault.kind == "worker":
            return self.kill_worker(fault.number)
        if fault.kind == "rank":
            return self.kill_rank(fault.number)
        return self.kill_coordinator()

    async def _wind_up(self) -> None:
        """Let the agents end by themselves, then the coordinator. SIGTERM is for those that are not members yet."""
        for agent in self.agents.values():
            agent.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                for agent in self.agents.values():
                    await asyncio.to_thread(agent.popen.wait)
                if self.coordinator is not None:
                    self.coordinator.terminate()
                    await asyncio.to_thread(self.coordinator.popen.wait)

    def _kill_all(self) -> None:
        for process in [*self.agents.values(), *([self.coordinator] if self.coordinator else [])]:
            process.kill()

    # --- what can be done to it --------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Ask for a saved end."""
        self._change(suspend=True)

    def scale(self, replicas: int) -> None:
        """Ask for another number of workers."""
        self._change(replicas=replicas)

    def kill_worker(self, index: int) -> bool:
        """SIGKILL an agent, and with it its ranks; False when there is none."""
        return strike(self.agents.get(index))

    def kill_rank(self, rank: int) -> bool:
        """SIGKILL one rank process; False when it does not run."""
        found = [pid for agent in self.agents.values() if (pid := find_rank(agent, rank)) is not None]
        return any(kill_process(pid) for pid in found)

    def kill_coordinator(self) -> bool:
        """SIGKILL the coordinator; False when there is none."""
        return strike(self.coordinator)

    def _change(self, **changes: object) -> None:
        self.desired = self.desired.model_copy(update={"revision": self.desired.revision + 1, **changes})


def keep_progress(status: CoordinatorStatus, before: CoordinatorStatus | None) -> CoordinatorStatus:
    """With the progress that a coordinator which has just begun does not know yet."""
    if before is None or status.progress is not None:
        return status
    return status.model_copy(
        update={"progress": before.progress, "total_steps": status.total_steps or before.total_steps}
    )


def newest_term(directory: Path) -> int:
    """The highest term that has claimed a generation number in this folder; 0 when none has."""
    terms = [path.name.partition("-")[0] for path in (directory / "lineage").glob("*-*")]
    return max((int(term) for term in terms if term.isdigit()), default=0)


def _require_started(process: LocalProcess, has_worked: bool) -> None:
    """A process that ends before anything worked would end again and again."""
    code = process.exit_code
    if has_worked or not code or code < 0:
        return
    tail = "\n".join(process.log.read_text(errors="replace").splitlines()[-8:])
    raise LocalRunError(f"{process.name} ended with exit code {code} before training could begin:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
