"""Runs a TrainingJob on this machine with the real coordinator, agents and ranks.

This module does what the operator does on a cluster: it keeps the wanted number of workers,
replaces a dead one under its index, starts a dead coordinator again under the next term, and sends
changes of the spec. Agents stand for nodes, a folder for the volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from regroup.local.coordinator_client import CoordinatorClient
from regroup.local.faults import Fault
from regroup.local.processes import (
    ADDRESS,
    LocalProcess,
    Place,
    find_rank,
    kill_process,
    start_agent,
    start_coordinator,
    strike,
)
from regroup.local.record_file import RecordWriter
from regroup.local.run_lock import locked
from regroup.local.run_record import RunRecord
from regroup_trainer.protocol.desired import Desired, LastKnown
from regroup_trainer.protocol.environment import RANK_ENTRY
from regroup_trainer.protocol.exit_codes import describe_exit
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome, Recovery
from regroup_trainer.protocol.lineage_files import LINEAGE_FOLDER, reserved_number
from regroup_trainer.system.machine_address import free_port

POLL_SECONDS = 0.05
REPLACE_SECONDS = 1.0
"""Pause before the replacement of a dead worker starts, as with a pod."""
END_SECONDS = 20.0
"""Processes that have not ended this long after they were asked to are killed."""


class LocalRunError(Exception):
    """A local process could not work. The message names it and shows the end of its log."""


@dataclass
class LocalRun:
    """One run of one job. `run` trains to the end. The other methods may be called meanwhile, from
    the same event loop.
    """

    desired: Desired
    ranks: int = 1
    """Rank processes per worker."""
    faults: Sequence[Fault] = ()
    on_status: Callable[[CoordinatorStatus], None] = lambda _status: None
    on_note: Callable[[str], None] = lambda _note: None
    """Called with one sentence when something is done to a process: a fault, a replacement."""
    on_line: Callable[[str], None] = lambda _line: None
    """Called with each line that a rank writes, which begins with `rank N: `."""
    entry: str = RANK_ENTRY
    working_directory: Path = field(default_factory=Path.cwd)
    """Working directory of the workers, which relative paths of a user's script start from."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables of the workers."""
    replace_seconds: float = REPLACE_SECONDS
    """May change while it runs; infinity keeps back every replacement."""
    status: CoordinatorStatus | None = None
    """The newest."""
    recoveries: dict[tuple[int, int], Recovery] = field(default_factory=dict)
    """(term, sequence) -> record, over all coordinators of this run."""
    agents: dict[int, LocalProcess] = field(default_factory=dict)
    coordinator: LocalProcess | None = None
    _start: float = 0.0
    _term: int = 0
    _incarnation: int = 0
    _gone_at: dict[int, float] = field(default_factory=dict)
    _pending: list[Fault] = field(default_factory=list)
    _start_problem: str = ""
    """Why the last attempt to start a process failed."""
    _place: Place | None = None
    _client: CoordinatorClient | None = None
    _record: RecordWriter | None = None
    _start_wall: float = 0.0

    async def run(self) -> Outcome:
        """Train to the end. Returns how it ended. Raises LocalRunError when a process cannot
        start, and FolderError when the run cannot have its folder.
        """
        directory = Path(self.desired.directory)
        self._pending = list(self.faults)
        self._start, self._start_wall = asyncio.get_running_loop().time(), time.time()
        self._record = RecordWriter(directory)
        with (
            locked(directory),
            tempfile.TemporaryDirectory(prefix="regroup-local-") as private,
        ):
            self._record.begin()
            self._term = newest_term(directory)
            token = secrets.token_hex(16)
            self._place = self._make_place(Path(private), directory / "logs", token)
            async with CoordinatorClient(
                f"http://{ADDRESS}:{self._place.port}", token
            ) as self._client:
                try:
                    outcome = await self._play(self._place)
                    self._record.finish(self._run_record(outcome))
                    return outcome
                finally:
                    self._kill_all()
                    self._report_lines()

    def _make_place(self, private: Path, logs: Path, token: str) -> Place:
        token_file = private / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        return Place(
            job=self.desired.job,
            port=free_port(),
            token_file=token_file,
            logs=logs,
            ranks=self.ranks,
            threads=threads_of_workers(self.desired, self.ranks, len(os.sched_getaffinity(0))),
            entry=self.entry,
            working_directory=self.working_directory,
            variables=self.variables,
        )

    # --- the operator's part ----------------------------------------------------------------------

    async def _play(self, place: Place) -> Outcome:
        while True:
            self._keep_coordinator(place)
            self._report_lines()
            self._keep_workers(place)
            await self._observe()
            if self.status is not None and self.status.outcome is not None:
                await self._wind_up()
                return self.status.outcome
            self._inject()
            await asyncio.sleep(POLL_SECONDS)

    def _keep_coordinator(self, place: Place) -> None:
        if self.coordinator is not None and self.coordinator.exit_code is None:
            return
        if self.coordinator is not None:
            _require_started(self.coordinator, self.status is not None)
            self.on_note(f"the coordinator is gone; starting one for term {self._term + 1}")
            self.coordinator = None
        if self.status is not None:
            known = {
                "seed": self.status.ledger,
                "last_known": _last_known(self.status),
                "failed_starts": self.status.failed_starts,
            }
            self.desired = self.desired.model_copy(update=known)
        term = self._term + 1
        started = self._start_process(lambda: start_coordinator(place, term, self.desired))
        if started is not None:
            self.coordinator, self._term = started, term

    def _keep_workers(self, place: Place) -> None:
        now = asyncio.get_running_loop().time()
        for index, agent in list(self.agents.items()):
            if agent.exit_code is not None:
                self._report_lines_of(agent)
                del self.agents[index]
                if index < self.desired.workers:
                    self.on_note(f"worker {index} is gone: {describe_exit(agent.exit_code)}")
                    _require_started(
                        agent, self.status is not None and self.status.generation is not None
                    )
                    self._gone_at[index] = now
        for index in range(self.desired.workers):
            if (
                index not in self.agents
                and now >= self._gone_at.get(index, -math.inf) + self.replace_seconds
                and not self.desired.suspend
            ):
                incarnation = self._incarnation
                started = self._start_process(partial(start_agent, place, index, incarnation))
                if started is None:
                    return
                self.agents[index] = started
                self._incarnation += 1

    def _start_process(self, start: Callable[[], LocalProcess]) -> LocalProcess | None:
        """The new process. None: its log cannot be made for now, as in a folder that is full,
        read-only or away, and the others go on. Raises LocalRunError where nothing has worked yet.
        """
        try:
            process = start()
        except OSError as error:
            problem = f"cannot start a process: {error.filename}: {error.strerror}"
            if self.status is None:
                raise LocalRunError(problem) from error
            if problem != self._start_problem:
                self.on_note(f"{problem}; trying again")
            self._start_problem = problem
            return None
        self._start_problem = ""
        return process

    async def _observe(self) -> None:
        assert self._client is not None
        try:
            self.status = keep_progress(await self._client.status(), self.status)
            if self.status.revision < self.desired.revision:
                await self._client.update_desired(self.desired)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return
        for recovery in self.status.recoveries:
            self.recoveries[self.status.term, recovery.sequence] = recovery
        assert self._record is not None
        self._record.write(self._run_record(None), asyncio.get_running_loop().time())
        self.on_status(self.status)

    def _run_record(self, outcome: Outcome | None) -> RunRecord:
        """For whoever looks at the folder meanwhile."""
        assert self._place is not None and self.status is not None
        newest = tuple(recovery for _, recovery in sorted(self.recoveries.items()))[-10:]
        return RunRecord(
            job=self.desired.job,
            workers=self.desired.replicas,
            start=self._start_wall,
            time=time.time(),
            port=self._place.port,
            report=self.status.model_copy(update={"recoveries": newest}),
            outcome=outcome,
        )

    def _report_lines(self) -> None:
        for agent in self.agents.values():
            self._report_lines_of(agent)

    def _report_lines_of(self, agent: LocalProcess) -> None:
        for line in agent.lines.of_ranks(has_ended=agent.exit_code is not None):
            self.on_line(line)

    def _inject(self) -> None:
        step = self.status.progress.step if self.status and self.status.progress else 0
        seconds = asyncio.get_running_loop().time() - self._start
        for fault in [fault for fault in self._pending if fault.is_due(step, seconds)]:
            if self._strike(fault):
                self._pending.remove(fault)
                self.on_note(f"killed {fault}")

    def _strike(self, fault: Fault) -> bool:
        """Inject the fault; False when there is nothing to kill at the moment."""
        if fault.kind == "worker":
            return self.kill_worker(fault.number)
        if fault.kind == "rank":
            return self.kill_rank(fault.number)
        return self.kill_coordinator()

    async def _wind_up(self) -> None:
        """Let the agents end by themselves, then the coordinator. SIGTERM ends agents that are not
        members yet.
        """
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

    async def series(self) -> bytes:
        """The course of the job, as JSON of Series; empty where the coordinator does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, RuntimeError):
            if self._client is not None:
                return await self._client.series()
        return b""

    @property
    def pending_faults(self) -> tuple[Fault, ...]:
        """Those that were not injected yet."""
        return tuple(self._pending)

    # --- changes and faults -----------------------------------------------------------------------

    def suspend(self) -> None:
        """Have the job save and stop."""
        self._change(suspend=True)

    def scale(self, replicas: int) -> None:
        """Have the job train with another number of workers."""
        self._change(replicas=replicas)

    def kill_worker(self, index: int) -> bool:
        """SIGKILL an agent, and with it its ranks; False when there is none."""
        return strike(self.agents.get(index))

    def kill_rank(self, rank: int) -> bool:
        """SIGKILL one rank process; False when it does not run."""
        found = [
            pid for agent in self.agents.values() if (pid := find_rank(agent, rank)) is not None
        ]
        return any(kill_process(pid) for pid in found)

    def kill_coordinator(self) -> bool:
        """SIGKILL the coordinator; False when there is none."""
        return strike(self.coordinator)

    def _change(self, **changes: object) -> None:
        self.desired = self.desired.model_copy(
            update={"revision": self.desired.revision + 1, **changes}
        )


def keep_progress(status: CoordinatorStatus, before: CoordinatorStatus | None) -> CoordinatorStatus:
    """The status, with the former progress while a new coordinator does not know it yet."""
    if before is None or status.progress is not None:
        return status
    return status.model_copy(
        update={
            "progress": before.progress,
            "total_steps": status.total_steps or before.total_steps,
        }
    )


def _last_known(status: CoordinatorStatus) -> LastKnown | None:
    """For the next coordinator, which may find that no worker is left either."""
    if status.generation is None or status.progress is None:
        return None
    return LastKnown(
        step=status.progress.step,
        time=status.progress.time,
        world_size=status.world_size,
        generation=status.generation,
    )


def threads_of_workers(desired: Desired, ranks: int, cpus: int) -> int | None:
    """OMP_NUM_THREADS of workers with so many ranks: an equal share of the CPUs for the built-in
    trainer. A script gets what torchrun sets, 1 beside other ranks of its worker; None: unset.
    """
    if desired.script:
        return 1 if ranks > 1 else None
    return max(1, cpus // (desired.replicas * ranks))


def newest_term(directory: Path) -> int:
    """The highest term that has reserved a generation number in this folder; 0 when none has."""
    names = [path.name for path in (directory / LINEAGE_FOLDER).glob("*")]
    return max((number.term for name in names if (number := reserved_number(name))), default=0)


def _require_started(process: LocalProcess, has_worked: bool) -> None:
    """Raises LocalRunError for a process that failed before anything worked: it would fail
    again.
    """
    code = process.exit_code
    if has_worked or not code or code < 0:
        return
    tail = "\n".join(process.log.read_text(errors="replace").splitlines()[-8:])
    raise LocalRunError(
        f"{process.name} ended with {describe_exit(code)} before training could begin:\n{tail}"
    )
