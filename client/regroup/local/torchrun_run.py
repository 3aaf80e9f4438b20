"""Runs a TrainingJob with `launcher: torchrun` on this machine: one stock agent per worker.

This module does what the operator does on a cluster: it keeps one store and one agent per index,
replaces a dead agent under its index, and begins the next attempt when the store is gone. Torchrun
does not report what the ranks do, so that their output is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from regroup.local.faults import Fault
from regroup.local.local_run import END_SECONDS, POLL_SECONDS, REPLACE_SECONDS, LocalRunError
from regroup.local.log_lines import OF_A_RANK, LogLines
from regroup.local.processes import (
    ADDRESS,
    dies_with,
    has_rank_of_torchrun,
    kill_rank_of_torchrun,
    kill_with_descendants,
    strike,
)
from regroup.local.record_file import RecordWriter
from regroup.local.run_lock import locked
from regroup.local.run_record import RunRecord
from regroup_operator.api import torchrun_end
from regroup_operator.api.torchrun_end import AttemptState
from regroup_operator.api.user_script import Script
from regroup_operator.render.torchrun_commands import (
    Rendezvous,
    agent_command,
    agent_variables,
    store_command,
)
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.protocol.exit_codes import WAITS_IN_VAIN, describe_exit
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.progress_pattern import Found, ProgressPattern
from regroup_trainer.protocol.torchrun_programs import MESSAGE_VARIABLE

STORE_SECONDS = 120.0
"""How long the store may take to listen: it imports torch first."""
_MESSAGE_LIMIT = 3000
"""Characters of a failing rank's standard error in an outcome."""
_MOST_LINES = 256
"""New lines that are searched for a step, at most: the newest."""
_OF_RANK_0 = "rank 0: "
_LISTENING = re.compile(r"listens on port (\d+)")


@dataclass(frozen=True)
class Wanted:
    """What is run, and on how many workers."""

    job: str
    script: Script
    replicas: int
    nnodes: str
    """Bounds of the number of workers, `min:max`."""
    ranks: int
    """Per worker."""
    max_restarts: int
    working_directory: Path
    """The folder that relative paths of the script start from."""
    directory: Path
    """The job's own folder."""
    progress_pattern: str = ""
    """Finds steps in what the ranks write; empty: nothing does."""

    @property
    def min_replicas(self) -> int:
        """Fewest workers that train."""
        return int(self.nnodes.partition(":")[0])


@dataclass
class Process:
    """The store or an agent. `out` has its standard output, `log` its standard error, and `last`
    the last message of a worker.
    """

    name: str
    popen: subprocess.Popen[bytes]
    out: Path
    log: Path
    last: Path
    out_lines: LogLines
    log_lines: LogLines

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.popen.poll()

    def kill(self) -> None:
        """End it and the processes that it started, as a power failure would."""
        kill_with_descendants(self.popen)

    @property
    def message(self) -> str:
        """Why it failed: what its rank left, or else the end of its log."""
        left = self.last.read_text(errors="replace") if self.last.exists() else ""
        return left or _tail(self.log)

    def new_lines(self, *, only_ranks: bool) -> list[str]:
        """Whole lines that it has written since the last call; all of them once it has ended."""
        ended = self.exit_code is not None
        logs = (self.out_lines, self.log_lines)
        take = LogLines.of_ranks if only_ranks else LogLines.lines
        return [line for log in logs for line in take(log, has_ended=ended)]


@dataclass
class TorchrunRun:
    """One run of one job. `run` trains to the end."""

    wanted: Wanted
    faults: Sequence[Fault] = ()
    on_line: Callable[[str], None] = lambda _line: None
    """Called with each line that a rank prints."""
    on_note: Callable[[str], None] = lambda _note: None
    """Called with one sentence when something is done to a process."""
    on_step: Callable[[Found], None] = lambda _found: None
    """Called with the newest step that a rank has written."""
    step: Found | None = None
    """That step."""
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
    """Workers and attempts that ended by themselves."""
    _lost: int = 0
    """Workers that were killed: their peers have used up restarts because of them."""
    _failed: dict[int, str] = field(default_factory=dict)
    """The last messages of workers that failed and were not replaced yet."""
    _gave_up: str | None = None
    """The last message of an agent that gave up on its ranks."""
    _reason: str = ""
    """The last message of what failed last."""
    _replace_at: dict[int, float] = field(default_factory=dict)
    _pending: list[Fault] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)
    _suspended: bool = False
    _noted: int = 0
    """The last attempt whose ranks were seen."""
    _pattern: ProgressPattern | None = None
    _start_wall: float = 0.0
    _record: RecordWriter = field(init=False)

    async def run(self) -> Outcome:
        """Train to the end. Raises LocalRunError when the store cannot start, and FolderError when
        the run cannot have its folder.
        """
        self._pending = list(self.faults)
        if self.wanted.progress_pattern:
            self._pattern = ProgressPattern(self.wanted.progress_pattern)
        self._record = RecordWriter(self.wanted.directory)
        self._start_wall = time.time()
        with locked(self.wanted.directory):
            self._record.begin()
            outcome = await self._play(_now())
            self._record.finish(self._run_record(outcome))
            return outcome

    async def _play(self, start: float) -> Outcome:
        try:
            while True:
                await self._keep_store()
                self._keep_agents()
                self._note_running()
                self._report_lines()
                self._record.write(self._run_record(None), _now())
                if (outcome := self._outcome()) is not None:
                    return outcome
                if self._suspended:
                    return await self._wind_up()
                self._inject(_now() - start)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for process in [*self.agents.values(), *([self.store] if self.store else [])]:
                process.kill()
            self._report_lines()

    @property
    def pending_faults(self) -> tuple[Fault, ...]:
        """Those that were not injected yet."""
        return tuple(self._pending)

    # --- changes and faults -----------------------------------------------------------------------

    def suspend(self) -> None:
        """End the run. What the script has saved stays."""
        self._suspended = True

    def kill_worker(self, index: int) -> bool:
        """SIGKILL an agent and its ranks; False when there is none."""
        return strike(self.agents.get(index))

    def kill_rank(self, rank: int) -> bool:
        """SIGKILL one rank; False when it does not run."""
        return kill_rank_of_torchrun((agent.popen.pid for agent in self.agents.values()), rank)

    # --- the operator's part ----------------------------------------------------------------------

    async def _keep_store(self) -> None:
        """Keep one store. When it is gone, or the attempt cannot complete any more, begin the next
        attempt with another store.
        """
        again = torchrun_end.judge(self._state()).outcome == "again"
        if self.store is not None and self.store.exit_code is None and not again:
            return
        if self.store is not None:
            self._account_attempt(self._state())
            for process in [*self.agents.values(), self.store]:
                process.kill()
            self._report_lines()
        self.attempt += 1
        self.agents, self._done, self._failed, self._replace_at = {}, set(), {}, {}
        self.on_note("importing torch: first the store where the workers meet, then each worker")
        self.store = self._start(
            f"{self.wanted.job}-s{self.attempt}",
            store_command(sys.executable, self._identity(), 0),
            {},
        )
        self._port = await self._listening(self.store)

    def _state(self) -> AttemptState:
        return AttemptState(
            well=len(self._done),
            running=len(self.agents),
            failures=tuple(self._failed.values()),
            waits_in_vain=self.store is not None and self.store.exit_code == WAITS_IN_VAIN,
            fewest=self.wanted.min_replicas,
        )

    def _account_attempt(self, ended: AttemptState) -> None:
        self.on_note("the attempt is over; the next one begins")
        if ended.waits_in_vain:
            self.on_note("a worker waited to train again with others that have ended well")
            self._failures += 1
            left = (agent.message for agent in self.agents.values() if agent.last.exists())
            self._reason = next(filter(None, left), self._reason)

    def _identity(self) -> str:
        return f"{self.wanted.job}-{self.attempt}"

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
                self._report_lines()
                del self.agents[index]
                self._account(index, agent)
        if self._outcome() is not None:
            return
        refused = any(map(torchrun_end.was_refused, self._failed.values()))
        ended = bool(self._done) or refused  # torchrun refuses workers that come later
        for index in range(self.wanted.replicas):
            if (
                index not in self.agents
                and not ended
                and _now() >= self._replace_at.get(index, 0.0)
            ):
                self._failed.pop(index, None)
                self.restarts += index in self._replace_at
                self.agents[index] = self._start_agent(index)

    def _note_running(self) -> None:
        """Say once in an attempt that ranks run: torchrun itself does not."""
        agents = [agent.popen.pid for agent in self.agents.values()]
        if self._noted == self.attempt or not has_rank_of_torchrun(agents):
            return
        self._noted = self.attempt
        script = " ".join(self.wanted.script.arguments[:1])
        self.on_note(f"running {script} on {len(agents)} worker{'' if len(agents) == 1 else 's'}")

    def _account(self, index: int, agent: Process) -> None:
        if agent.exit_code == 0:
            self._done.add(index)
            return
        self.on_note(
            f"worker {index} is gone: {describe_exit(agent.exit_code)}; see logs/{agent.log.name}"
        )
        if (agent.exit_code or 0) > 0:
            message = agent.message
            follows = torchrun_end.was_refused(message) or torchrun_end.lost_peer(message)
            self._failures += not follows
            self._failed[index] = self._reason = message
            if torchrun_end.gave_up(self._reason) or self._cannot_start():
                self._gave_up = self._reason
        else:
            self._lost += 1
        self._replace_at[index] = _now() + self.replace_seconds

    def _cannot_start(self) -> bool:
        """All workers of a local run are on one machine: what one shows, all do."""
        state = replace(self._state(), running=0, failures=(self._reason,))
        has_started = self.attempt > 1 or self.step is not None
        return not has_started and bool(torchrun_end.cannot_start(state))

    def _outcome(self) -> Outcome | None:
        budget = f"spec.restartPolicy.maxRestarts={self.wanted.max_restarts}"
        if self._gave_up is not None and not self._lost:
            shown = torchrun_end.shorten(self._gave_up, _MESSAGE_LIMIT)
            reason, text = torchrun_end.why_it_ended(self._gave_up, self.wanted.max_restarts)
            return Outcome(result="failed", reason=reason, message=f"{shown}\n{text}")
        if 0 <= self.wanted.max_restarts < self._failures:
            text = f"workers failed {self._failures} times ({budget})"
            shown = torchrun_end.shorten(self._reason, _MESSAGE_LIMIT)
            return Outcome(result="failed", message=f"{shown}\n{text}".lstrip())
        if torchrun_end.judge(self._state()).outcome == "complete":
            return Outcome(
                result="completed", message=f"workers that ended well: {len(self._done)}"
            )
        return None

    def _inject(self, seconds: float) -> None:
        step = self.step.step if self.step else 0
        for fault in [f for f in self._pending if f.is_due(step, seconds, self._lines)]:
            struck = (
                self.kill_worker(fault.number)
                if fault.kind == "worker"
                else self.kill_rank(fault.number)
            )
            if struck:
                self._pending.remove(fault)
                self.on_note(f"killed {fault}")

    def _report_lines(self) -> None:
        # Agents end with tracebacks of their own, which would drown that of a rank. They stay in
        # the log, and explain a worker that fails without a rank.
        only_ranks = not self.wanted.script.flags.has_output
        agents = self.agents.values()
        new = [line for agent in agents for line in agent.new_lines(only_ranks=only_ranks)]
        if any(fault.unit == "line" for fault in self._pending):
            self._lines += new
        for line in new:
            self.on_line(line)
        if self._pattern is not None:
            self._find_step(self._pattern, new)

    def _find_step(self, pattern: ProgressPattern, new: Sequence[str]) -> None:
        """Report the newest step that rank 0 has written. Lines have no rank where torchrun itself
        handles the output: all of those count.
        """
        found = _newest_step(pattern, [line for line in new if _may_be_of_rank_0(line)])
        if found is not None and found != self.step:
            self.step = found
            self.on_step(found)

    def _run_record(self, outcome: Outcome | None) -> RunRecord:
        """For whoever looks at the folder meanwhile."""
        found = self.step or Found(0, 0, None)
        return RunRecord(
            job=self.wanted.job,
            workers=self.wanted.replicas,
            start=self._start_wall,
            time=time.time(),
            launcher="torchrun",
            step=found.step,
            total_steps=found.total,
            loss=found.loss,
            outcome=outcome,
        )

    async def _wind_up(self) -> Outcome:
        for agent in self.agents.values():
            agent.popen.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                for agent in self.agents.values():
                    await asyncio.to_thread(agent.popen.wait)
        return Outcome(result="suspended", message="stopped; what the script has saved stays")

    # --- processes --------------------------------------------------------------------------------

    def _start_agent(self, index: int) -> Process:
        wanted = self.wanted
        meeting = Rendezvous(
            endpoint=f"{ADDRESS}:{self._port}",
            identity=self._identity(),
            nnodes=wanted.nnodes,
            ranks=wanted.ranks,
            max_restarts=wanted.max_restarts,
            address=ADDRESS,
        )
        script = replace(wanted.script, interpreter=sys.executable)
        name = f"{wanted.job}-w{index}-{self._incarnation}"
        self._incarnation += 1
        variables = {**agent_variables(script), **script.environment, **script.variables}
        return self._start(name, agent_command(script, meeting), variables)

    def _start(self, name: str, command: list[str], variables: Mapping[str, str]) -> Process:
        out, log, last = (
            self.wanted.directory / "logs" / f"{name}.{kind}" for kind in ("out", "log", "message")
        )
        environment = {
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            DIRECTORY_VARIABLE: str(self.wanted.directory),
            MESSAGE_VARIABLE: str(last),
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
                start_new_session=True,  # Ctrl-C reaches only this process
                # One prctl and one getppid, both already resolved: safe between fork and exec.
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509
            )
        return Process(name, popen, out, log, last, LogLines(out), LogLines(log))


def _may_be_of_rank_0(line: str) -> bool:
    return line.startswith(_OF_RANK_0) or not OF_A_RANK.match(line)


def _newest_step(pattern: ProgressPattern, lines: Sequence[str]) -> Found | None:
    newest = reversed(lines[-_MOST_LINES:])
    found = (pattern.find(line.removeprefix(_OF_RANK_0).encode()) for line in newest)
    return next((step for step in found if step is not None), None)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


def _now() -> float:
    return asyncio.get_running_loop().time()
