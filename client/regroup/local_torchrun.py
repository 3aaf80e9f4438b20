"""A TrainingJob with `launcher: torchrun` on this machine: stock agents as processes, one for each worker.

The operator's part is played here as on a cluster: one store, one agent per index, a dead one replaced under the same
index, the next attempt when the store is gone. Nobody but the agents knows what the ranks do: what they print is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regroup.faults import Fault
from regroup.local import LocalRunError
from regroup.processes import ADDRESS, descendants, dies_with, kill_process, strike
from regroup_operator.launcher import Script
from regroup_operator.torchrun import OWN_STORES, Rendezvous, agent_command, store_command
from regroup_trainer.contract import DIRECTORY_VARIABLE

POLL_SECONDS = 0.05
REPLACE_SECONDS = 1.0
"""A dead worker's replacement starts so much later, as a pod would."""
STORE_SECONDS = 120.0
"""The store imports torch before it listens."""
END_SECONDS = 20.0
GAVE_UP = "ChildFailedError"
"""Torchrun's last words when its ranks failed more often than they may."""
_LISTENING = re.compile(r"listens on port (\d+)")


@dataclass(frozen=True)
class Wanted:
    """What is run, and on how many workers."""

    job: str
    script: Script
    replicas: int
    nnodes: str
    """Bounds of the world, `min:max`."""
    ranks: int
    """Per worker."""
    max_restarts: int
    working_directory: Path
    """Where relative paths of the script begin."""
    directory: Path
    """The job's own folder."""

    @property
    def min_replicas(self) -> int:
        """Fewest workers that train."""
        return int(self.nnodes.partition(":")[0])


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    outcome: Literal["completed", "failed", "suspended"]
    message: str


@dataclass
class Process:
    """The store, or an agent; what it prints is in `out`, what it complains about in `log`."""

    name: str
    popen: subprocess.Popen[bytes]
    out: Path
    log: Path
    shown: int = 0
    """Bytes of `out` that were told."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.popen.poll()

    def kill(self) -> None:
        """End it and what it has started, as a power failure would."""
        for pid in [self.popen.pid, *descendants(self.popen.pid)]:
            kill_process(pid)
        self.popen.wait()

    def new_lines(self) -> list[str]:
        """Whole lines that it has printed since the last call."""
        with self.out.open("rb") as file:
            file.seek(self.shown)
            whole = file.read().rpartition(b"\n")[0]
        self.shown += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()


@dataclass
class TorchrunRun:
    """One run of one job; `run` plays it to its end."""

    wanted: Wanted
    faults: Sequence[Fault] = ()
    on_line: Callable[[str], None] = lambda _line: None
    """Hears what the ranks print."""
    on_note: Callable[[str], None] = lambda _note: None
    """Hears what is done to the processes."""
    replace_seconds: float = REPLACE_SECONDS
    restarts: int = 0
    """Workers that were replaced."""
    attempt: int = 0
    store: Process | None = None
    agents: dict[int, Process] = field(default_factory=dict)
    _port: int = 0
    _done: set[int] = field(default_factory=set)
    _incarnation: int = 0
    _failures: int = 0
    _gave_up: str | None = None
    """The last words of an agent that did not want to start its ranks again."""
    _replace_at: dict[int, float] = field(default_factory=dict)
    _pending: list[Fault] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)
    _suspended: bool = False

    async def run(self) -> Outcome:
        """Train to the end. Raises LocalRunError when the store cannot start."""
        (self.wanted.directory / "logs").mkdir(parents=True, exist_ok=True)
        self._pending = list(self.faults)
        start = _now()
        try:
            while True:
                await self._keep_store()
                self._keep_agents()
                self._tell()
                if (outcome := self._outcome()) is not None:
                    return outcome
                if self._suspended:
                    return await self._wind_up()
                self._inject(_now() - start)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for process in [*self.agents.values(), *([self.store] if self.store else [])]:
                process.kill()
            self._tell()

    # --- what can be done to it --------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """End it; what the script has saved stays."""
        self._suspended = True

    def kill_worker(self, index: int) -> bool:
        """SIGKILL an agent and its ranks; False when there is none."""
        return strike(self.agents.get(index))

    def kill_rank(self, rank: int) -> bool:
        """SIGKILL one rank; False when it does not run."""
        for agent in self.agents.values():
            for pid in descendants(agent.popen.pid):
                if _environment(pid).get("RANK") == str(rank) and kill_process(pid):
                    return True
        return False

    # --- playing the operator ----------------------------------------------------------------------------------------

    async def _keep_store(self) -> None:
        """One store; when it is gone, or an attempt can't complete any more, the next attempt begins with another."""
        spoilt = bool(self._done) and not self.agents and len(self._done) < self.wanted.min_replicas
        if self.store is not None and self.store.exit_code is None and not spoilt:
            return
        if self.store is not None:
            self.on_note("the attempt is over; the next one begins")
            for process in [*self.agents.values(), self.store]:
                process.kill()
        self.attempt += 1
        self.agents, self._done, self._replace_at = {}, set(), {}
        self.store = self._start(f"{self.wanted.job}-s{self.attempt}", store_command(sys.executable, 0), {})
        self._port = await self._listening(self.store)

    async def _listening(self, store: Process) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):
                while store.exit_code is None:
                    if found := _LISTENING.search(store.out.read_text()):
                        return int(found[1])
                    await asyncio.sleep(POLL_SECONDS)
        raise LocalRunError(f"{store.name} could not start:\n{_tail(store.log)}")

    def _keep_agents(self) -> None:
        for index, agent in list(self.agents.items()):
            if agent.exit_code is not None:
                self._tell()
                del self.agents[index]
                self._account(index, agent)
        ended = bool(self._done)  # whoever comes now is turned away
        for index in range(self.wanted.replicas):
            if index not in self.agents and not ended and _now() >= self._replace_at.get(index, 0.0):
                self.agents[index] = self._start_agent(index)

    def _account(self, index: int, agent: Process) -> None:
        if agent.exit_code == 0:
            self._done.add(index)
            return
        self.on_note(f"worker {index} is gone (exit code {agent.exit_code}); see logs/{agent.log.name}")
        self.restarts += 1
        if (agent.exit_code or 0) > 0:
            self._failures += 1
            words = _tail(agent.log)
            self._gave_up = words if GAVE_UP in words else self._gave_up
        self._replace_at[index] = _now() + self.replace_seconds

    def _outcome(self) -> Outcome | None:
        if self._done and not self.agents and len(self._done) >= self.wanted.min_replicas:
            return Outcome("completed", f"workers that ended well: {len(self._done)}")
        budget = self.wanted.max_restarts
        if self._gave_up is not None and self.restarts == self._failures:
            return Outcome("failed", f"torchrun gave up (spec.restartPolicy.maxRestarts={budget}):\n{self._gave_up}")
        if 0 <= budget < self._failures:
            return Outcome("failed", f"workers failed {self._failures} times (spec.restartPolicy.maxRestarts={budget})")
        return None

    def _inject(self, seconds: float) -> None:
        for fault in [fault for fault in self._pending if fault.is_due(0, seconds, self._lines)]:
            struck = self.kill_worker(fault.number) if fault.kind == "worker" else self.kill_rank(fault.number)
            if struck:
                self._pending.remove(fault)
                self.on_note(f"killed {fault}")

    def _tell(self) -> None:
        for agent in self.agents.values():
            for line in agent.new_lines():
                self._lines.append(line)
                self.on_line(line)

    async def _wind_up(self) -> Outcome:
        for agent in self.agents.values():
            agent.popen.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                for agent in self.agents.values():
                    await asyncio.to_thread(agent.popen.wait)
        return Outcome("suspended", "stopped; what the script has saved stays")

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start_agent(self, index: int) -> Process:
        wanted = self.wanted
        meeting = Rendezvous(
            endpoint=f"{ADDRESS}:{self._port}",
            identity=f"{wanted.job}-{self.attempt}",
            nnodes=wanted.nnodes,
            ranks=wanted.ranks,
            max_restarts=wanted.max_restarts,
            address=ADDRESS,
        )
        command = [sys.executable, *agent_command(wanted.script, meeting)[1:]]
        name = f"{wanted.job}-w{index}-{self._incarnation}"
        self._incarnation += 1
        return self._start(name, command, {**OWN_STORES, **wanted.script.environment})

    def _start(self, name: str, command: list[str], variables: Mapping[str, str]) -> Process:
        out, log = (self.wanted.directory / "logs" / f"{name}.{kind}" for kind in ("out", "log"))
        threads = max(1, len(os.sched_getaffinity(0)) // (self.wanted.replicas * self.wanted.ranks))
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            DIRECTORY_VARIABLE: str(self.wanted.directory),
            **variables,
        }
        with out.open("wb") as stdout, log.open("wb") as stderr:
            popen = subprocess.Popen(
                command,
                cwd=self.wanted.working_directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for us alone
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one prctl and one getppid, both already resolved
            )
        return Process(name, popen, out, log)


def _environment(pid: int) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


def _now() -> float:
    return asyncio.get_running_loop().time()
