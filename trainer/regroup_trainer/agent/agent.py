"""The agent of a worker pod: it executes the coordinator's orders and reports on its ranks.

All of it runs in one event loop, except for the heartbeats (a thread of their own) and torch (the
template process and the ranks that are forked from it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regroup_trainer.agent import stacks
from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.agent.agent_snapshots import AgentSnapshots
from regroup_trainer.agent.agent_state import AgentState
from regroup_trainer.agent.assignments import make_assignments, threads_per_rank
from regroup_trainer.agent.coordinator_connection import CoordinatorConnection, RejectedError
from regroup_trainer.agent.endpoint import port_of, start_endpoint
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.agent.rank_sockets import RankSockets
from regroup_trainer.agent.script_progress import ScriptReports
from regroup_trainer.agent.template_process import TemplateProcess
from regroup_trainer.agent.template_protocol import (
    EndWithRanks,
    ForkRank,
    KillRanks,
    RankEnded,
    RankStarted,
    Ready,
    ReassignedRank,
    ShowStacks,
    StartStore,
    StoreEnded,
    StoreStarted,
    TemplateNews,
    TerminateRanks,
)
from regroup_trainer.agent.termination import oom_kills, rank_exit, termination_message
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.agent_messages import (
    HeldSnapshots,
    Leaving,
    RankExit,
    Stack,
    WorkerStacks,
)
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    CoordinatorMessage,
    Decide,
    Diagnose,
    Exit,
    LeaveGeneration,
    SnapshotComplete,
    Welcome,
)
from regroup_trainer.protocol.desired import CoordinatorContact
from regroup_trainer.protocol.environment import LOG_FORMAT, AgentEnvironment, read_token
from regroup_trainer.protocol.exit_codes import (
    KILLED,
    TEMPLATE_LOST,
    TERMINATED,
    WRONG_USAGE,
    describe_exit,
)
from regroup_trainer.protocol.generation import Assignment, GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    Finished,
    LastLine,
    Progress,
    RankReport,
    Report,
    ScriptStep,
    SnapshotsOff,
    SnapshotTaken,
)
from regroup_trainer.system.child_process import bytes_written
from regroup_trainer.system.log_lines import LineFormatter, Subject, log_to_stderr
from regroup_trainer.system.process_signals import ignore_signals
from regroup_trainer.system.server_connections import raise_open_files

END_SECONDS = 10.0
"""How long the processes of ranks may last after their last report."""
LEAVE_SECONDS = 60.0
"""After SIGTERM, an agent without a coordinator ends its ranks no later than this. They train on
meanwhile; a successor on a busy cluster starts within half of it.
"""
QUIET_SECONDS = 0.2
"""A rank that has written nothing for so long is not saving."""
HEARTBEAT_SECONDS = 0.5
"""Until the first generation brings the job's own interval."""

log = logging.getLogger(__name__)


class Agent:
    """One worker. `run` returns the exit code of the pod."""

    def __init__(self, environment: AgentEnvironment, token: str) -> None:
        self._environment = environment
        self._token = token
        self._state = AgentState(environment)
        self._processes: dict[int, int] = {}
        """Local rank -> the process that was forked last for it."""
        self._metrics = AgentMetrics(
            environment.namespace, environment.job, self._running_processes
        )
        self._template = TemplateProcess(self._on_news, self._on_template_end, environment.start)
        self._connection = CoordinatorConnection(
            environment.coordinator_url,
            token,
            environment.ranks,
            self._state.hello,
            self._on_message,
        )
        loop = asyncio.get_running_loop()
        self._heartbeat = Heartbeat(
            environment.coordinator_url,
            token,
            environment.member,
            environment.index,
            HEARTBEAT_SECONDS,
            on_lost=lambda at: loop.call_soon_threadsafe(self._connection.on_lost, at),
        )
        self._sockets: RankSockets | None = None
        self._snapshots: AgentSnapshots | None = None
        self._result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._warm = asyncio.Event()
        self._leaving = ""
        self._assignments: list[Assignment] = []
        """Of the ranks of the current generation."""
        self._scripts = ScriptReports(time.monotonic())
        self._last_lines_due: Finished | None = None
        """The report of a rank that has ended. It waits for the steps in the last lines that the
        rank has written.
        """
        self._oom_kills = 0
        self._first_failure: RankExit | None = None
        self._diagnosing: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        """Held while ranks are asked for their stacks: each has one file for them."""
        self._releasing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def subject(self) -> Subject:
        """What its log is about now."""
        record = self._state.record
        number = str(record.number) if record else ""
        return Subject(self._environment.namespace, self._environment.job, number)

    async def run(self) -> int:
        """Run until the coordinator, a signal or a failure ends this member."""
        self._listen_to_signals()
        scratch = self._environment.scratch or None
        with tempfile.TemporaryDirectory(prefix="regroup-", dir=scratch) as directory:
            snapshots = self._snapshots = self._open_snapshots(Path(directory))
            endpoint = await start_endpoint(
                self._metrics,
                snapshots.server,
                self._on_address,
                self._contact,
                self._show_stacks,
                self._environment.metrics_port,
            )
            self._state.endpoint = (
                f"{self._environment.address}:{port_of(endpoint, self._environment.address)}"
            )
            working = asyncio.create_task(self._work(Path(directory)))
            try:
                ends: list[asyncio.Future[Any]] = [working, self._result]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                code = self._result.result() if self._result.done() else self._outcome(working)
            finally:
                self._heartbeat.stop()
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError, RejectedError):
                    await working
                if self._ending is not None:
                    self._ending.cancel()
                self._template.kill()
                snapshots.close()
                if self._sockets is not None:
                    self._sockets.close()
                await endpoint.cleanup()
        self._write_termination_log(code)
        return code

    def _open_snapshots(self, directory: Path) -> AgentSnapshots:
        environment = self._environment
        return AgentSnapshots(
            directory, environment.member, environment.ranks, self._token, self._on_snapshots
        )

    def _on_snapshots(self, news: HeldSnapshots | SnapshotsOff) -> None:
        if isinstance(news, HeldSnapshots):
            self._state.snapshots = news.snapshots
        self._connection.send(news)

    def _outcome(self, working: asyncio.Task[None]) -> int:
        error = working.exception()
        if not isinstance(error, RejectedError):
            raise error or RuntimeError("the connection to the coordinator ended")
        log.error("%s", error)
        return WRONG_USAGE

    async def _work(self, directory: Path) -> None:
        self._sockets = RankSockets(directory / "ranks.sock", self._on_report)
        await self._sockets.start()
        self._heartbeat.start()  # before torch is imported, which takes seconds to minutes
        await self._template.start(self._environment.entry, directory)
        await self._warm.wait()
        self._heartbeat.is_warm = True
        await self._connection.run()

    def _on_address(self, url: str) -> None:
        """The operator has sent where the coordinator is now."""
        self._heartbeat.url = url
        self._connection.move(url)

    def _contact(self) -> CoordinatorContact:
        """What the operator asks when the coordinator does not answer it."""
        unanswered = self._heartbeat.unanswered_seconds()
        return CoordinatorContact(term=self._connection.term, unanswered_seconds=unanswered)

    # --- orders of the coordinator ----------------------------------------------------------------

    def _on_message(self, message: CoordinatorMessage) -> None:
        match message:
            case Welcome():
                if self._leaving:
                    self._connection.send(Leaving(reason=self._leaving))
            case Begin(record=record):
                self._begin(record)
            case Decide() if self._sockets and self._state.is_current(message.generation):
                self._sockets.decide(message)
            case LeaveGeneration() if self._sockets and self._state.is_current(message.generation):
                self._sockets.leave_generation(message)
                self._kill_hanging(message)
            case Diagnose() if self._state.is_current(message.generation):
                self._diagnosing = asyncio.create_task(self._diagnose())
            case SnapshotComplete(number=number) if self._snapshots:
                self._snapshots.complete(number)
            case Exit(code=code, reason=reason):
                log.info("this worker ends with exit code %d: %s", code, reason)
                if code:
                    self._end(code)
                else:
                    self._ending = asyncio.create_task(self._end_with_ranks())

    def _begin(self, record: GenerationRecord) -> None:
        former, parked = self._state.record, self._state.parked()
        if not self._state.begin(record) or self._sockets is None or self._snapshots is None:
            return
        ranks = self._state.local_ranks()
        log.info("generation %s: ranks %s of %d", record.number, list(ranks), record.world_size)
        self._connection.begin_generation(len(record.members))
        self._sockets.forget()
        self._scripts = ScriptReports(time.monotonic())
        self._last_lines_due = None
        self._metrics.begin(record, ranks)
        self._heartbeat.seconds = record.desired.heartbeat_milliseconds / 1000
        self._heartbeat.begin(len(record.members))
        self._first_failure = None
        self._oom_kills = oom_kills()
        free_slots = self._snapshots.begin(record)
        self._assignments = make_assignments(
            record, ranks, self._sockets.path, self._snapshots.folder, free_slots
        )
        resident = parked if record.restored_from == "Peers" else {}
        self._start_ranks(former, resident)

    def _start_ranks(self, former: GenerationRecord | None, resident: Mapping[int, int]) -> None:
        """Have resident ranks enter the generation, fork the others, and kill all older ones.

        `resident` maps the local rank of a parked process to its rank in the former generation.
        """
        assert self._sockets is not None
        entering = [a for a in self._assignments if a.local_rank in resident]
        self._template.order(
            KillRanks(
                retained=tuple(
                    ReassignedRank(rank=resident[a.local_rank], assignment=a) for a in entering
                )
            )
        )
        count = len(self._assignments)
        own_program = count > 0 and bool(self._assignments[0].record.desired.script)
        threads = threads_per_rank(count, own_program) if count else 0
        for assignment in self._assignments:
            if assignment not in entering:
                self._template.order(ForkRank(assignment=assignment, threads=threads))
            elif former is not None:
                self._sockets.enter(former.number, resident[assignment.local_rank], assignment)

    def _kill_hanging(self, order: LeaveGeneration) -> None:
        """Kill the rank that hangs at once, and later those that did not leave in time."""
        hanging = [rank for rank in self._state.running() if rank == order.stuck]
        self._kill_ranks(order.generation, hanging, "it hung and was killed")
        self._releasing = asyncio.create_task(self._kill_stuck(order))

    async def _kill_stuck(self, order: LeaveGeneration) -> None:
        """Kill the ranks that have not left the generation in time, after showing their stacks.

        Programs without a Session receive no orders, and get SIGTERM. After the loss of a peer, one
        that writes may be saving, before or after that signal. A save that is cut off can make each
        later attempt fail, so it has time to end it.
        """
        until = time.monotonic() + order.save_seconds
        unmanaged = self._unmanaged(order.generation)
        pids = self._pids(unmanaged)
        self._state.terminated.update(unmanaged)
        await _let_save(pids, until)
        if unmanaged and self._state.is_current(order.generation):
            self._template.order(TerminateRanks(ranks=unmanaged))
        await asyncio.sleep(order.seconds)
        await _let_save(pids, until)
        if not self._state.is_current(order.generation) or not self._state.running():
            return
        await self._stacks(
            self._state.running(), f"did not leave its generation within {order.seconds:.0f} s"
        )
        if self._state.is_current(order.generation):
            why = f"it did not leave its generation within {order.seconds:.0f} s and was killed"
            self._kill_ranks(order.generation, self._state.running(), why)

    def _unmanaged(self, generation: GenerationNumber) -> tuple[int, ...]:
        """The running ranks that are no Session's."""
        sockets, running = self._sockets, self._state.running()
        assert sockets is not None
        return tuple(rank for rank in running if not sockets.has_session(generation, rank))

    def _pids(self, ranks: Sequence[int]) -> list[int]:
        local_ranks = [a.local_rank for a in self._assignments if a.rank in ranks]
        return [self._processes[n] for n in local_ranks if n in self._processes]

    def _kill_ranks(self, generation: GenerationNumber, ranks: Sequence[int], why: str) -> None:
        if not ranks:
            return
        self._keep([a for a in self._assignments if a.rank not in ranks])
        for rank in ranks:
            self._report_end(
                RankExit(
                    generation=generation,
                    rank=rank,
                    exit_code=KILLED,
                    signal=signal.SIGKILL,
                    cause="peer",
                    message=why,
                )
            )

    def _keep(self, assignments: Sequence[Assignment]) -> None:
        """Kill all ranks but these."""
        retained = tuple(ReassignedRank(rank=a.rank, assignment=a) for a in assignments)
        self._template.order(KillRanks(retained=retained))

    async def _diagnose(self) -> None:
        """Log the stacks of the ranks, and send the coordinator where they are."""
        for stack in await self._stacks(self._state.local_ranks(), "commits no step"):
            self._connection.send(stack.shortened())

    async def _show_stacks(self) -> WorkerStacks:
        """What somebody who debugs the job is shown."""
        found = await self._collect_stacks(self._state.running())
        processes = self._running_processes()
        return WorkerStacks(
            ranks=tuple(stacks.describe(one, processes.get(one.rank)) for one in found)
        )

    async def _stacks(self, ranks: Sequence[int], why: str) -> list[Stack]:
        """The stacks of these ranks; they are logged, too."""
        found = await self._collect_stacks(ranks)
        for stack in found:
            log.warning("rank %d %s; its stack:\n%s", stack.rank, why, stack.text or "(no answer)")
        return found

    async def _collect_stacks(self, ranks: Sequence[int]) -> list[Stack]:
        record, place = self._state.record, self._state.local_ranks().start
        if record is None or self._sockets is None:
            return []
        async with self._asking:
            return await stacks.collect(
                lambda: self._template.order(ShowStacks(ranks=tuple(ranks))),
                self._sockets.path.parent,
                record,
                {rank: rank - place for rank in ranks},
            )

    # --- reports of ranks and template ------------------------------------------------------------

    def _on_report(self, report: RankReport) -> None:
        if not self._state.is_current(report.generation):
            return
        if isinstance(report, SnapshotTaken) and self._snapshots:
            self._snapshots.take(report)
            return
        if isinstance(report, LastLine):
            self._state.past_last_line.add(report.rank)
            return
        if isinstance(report, Finished) and self._may_write_steps(report.rank):
            self._last_lines_due = report
            return
        for passed_on in self._scripts.on_report(report, time.monotonic()):
            self._pass_on(passed_on)

    def _pass_on(self, report: Report) -> None:
        self._metrics.note(report)
        report = report.for_coordinator() if isinstance(report, Progress) else report
        self._state.note(report)
        self._connection.send(report)

    def _running_processes(self) -> dict[int, int]:
        """Rank -> process."""
        first, processes = self._state.local_ranks().start, self._processes
        running = self._state.running()
        return {r: processes[r - first] for r in running if r - first in processes}

    def _may_write_steps(self, rank: int) -> bool:
        """Whether the steps of a rank are found in what it writes."""
        record, sockets = self._state.record, self._sockets
        if record is None or sockets is None or rank or not record.desired.progress_pattern:
            return False
        return not sockets.has_session(record.number, rank) and not self._scripts.reports(rank)

    def _on_written_step(self, step: ScriptStep) -> None:
        """Rank 0 has written a step. What it reports by itself is more exact."""
        if self._state.is_current(step.generation) and self._may_write_steps(step.rank):
            for passed_on in self._scripts.on_written(step, time.monotonic()):
                self._pass_on(passed_on)

    def _on_news(self, news: TemplateNews) -> None:
        match news:
            case Ready():
                self._template.order(StartStore(address=self._environment.address))
            case StoreStarted(port=port):
                self._state.store = f"{self._environment.address}:{port}"
                self._warm.set()
                self._connection.resend_hello()
            case StoreEnded():
                log.error("the c10d store process ended; starting another")
                self._template.order(StartStore(address=self._environment.address))
            case ScriptStep():
                self._on_written_step(news)
            case RankStarted(local_rank=local_rank, pid=pid):
                self._processes[local_rank] = pid
            case RankEnded():
                self._on_rank_end(news)

    def _on_rank_end(self, end: RankEnded) -> None:
        now = self._state.rank_now(end.generation, end.rank)
        if end.killed or now is None or self._state.record is None:
            return
        # A parked rank may have died after the next generation began here, but before the template
        # received that order.
        end = end.model_copy(update={"generation": self._state.record.number, "rank": now})
        if (last := self._last_lines_due) is not None and last.rank == end.rank:
            self._last_lines_due = None
            self._pass_on(last)
        finished = self._state.ended.get(end.rank)
        if isinstance(finished, Finished) and (end.exit_code == 0 or finished.retained is None):
            return  # its part is done, however its process ends
        unreported = self._state.unreported(end.rank, end.step, end.time)
        if unreported is not None:
            self._pass_on(unreported)
        if end.rank in self._state.past_last_line or self._ended_well(end):
            self._count_as_finished(end)
            return
        report = rank_exit(end, oom=oom_kills() > self._oom_kills)
        if end.rank in self._state.terminated:
            report = report.model_copy(update={"cause": "peer"})
        whose = " (no failure of its own)" if report.cause == "peer" else ""
        log.error("rank %d %s%s", report.rank, report.how, whose)
        if report.cause != "peer":
            self._first_failure = self._first_failure or report
        self._report_end(report)

    def _ended_well(self, end: RankEnded) -> bool:
        """Whether a program without a Session has ended with code 0: by `os._exit`, or as another
        program that its process has become. None that was asked to end has done its work.
        """
        record, sockets = self._state.record, self._sockets
        is_script = record is not None and bool(record.desired.script)
        if not is_script or end.exit_code or end.rank in self._state.terminated:
            return False
        return sockets is not None and not sockets.has_session(end.generation, end.rank)

    def _count_as_finished(self, end: RankEnded) -> None:
        """A program whose last line has run has done its work, however its process ends."""
        log.warning(
            "rank %d ended with %s after its last line or by itself: its work counts",
            end.rank,
            describe_exit(end.exit_code),
        )
        self._report_end(
            Finished(generation=end.generation, rank=end.rank, step=0, reason="completed")
        )

    def _report_end(self, report: RankExit | Finished) -> None:
        self._state.ended.pop(report.rank, None)
        self._metrics.note(report)
        self._state.note(report)
        self._connection.send(report)

    def _on_template_end(self) -> None:
        if self._ending is not None:
            self._end(0)
            return
        log.error(
            "the process that forks the ranks ended, and all ranks with it (out of memory?): this "
            "worker ends with exit code %d, and another takes its place",
            TEMPLATE_LOST,
        )
        self._end(TEMPLATE_LOST)

    # --- the end ----------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)

    def _on_sigterm(self) -> None:
        if self._leaving:
            return
        self._leaving = "the worker received SIGTERM"
        log.info("%s", self._leaving)
        if self._state.highest is None and not self._connection.welcomed:
            self._end(TERMINATED)
            return
        if self._connection.welcomed:
            self._connection.send(Leaving(reason=self._leaving))
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._leave_alone)

    def _leave_alone(self) -> None:
        """Leave without an agreed end when no coordinator is connected."""
        if not self._connection.welcomed:
            log.warning("no coordinator within %.0f s after SIGTERM; ending", LEAVE_SECONDS)
            self._end(TERMINATED)
        else:
            asyncio.get_running_loop().call_later(1.0, self._leave_alone)

    def _reap_orphans(self) -> None:
        """As PID 1, reap orphans of other processes of this pod; the template is reaped apart."""
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid == self._template.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    async def _end_with_ranks(self) -> None:
        """End once the ranks that have finished are gone, and all that they wrote is in the log."""
        parked = set(self._state.parked())
        self._keep([a for a in self._assignments if a.local_rank not in parked])
        self._template.order(EndWithRanks())
        await asyncio.sleep(END_SECONDS)
        log.warning("ranks did not end within %.0f s after their last report", END_SECONDS)
        self._end(0)

    def _end(self, code: int) -> None:
        if not self._result.done():
            self._result.set_result(code)

    def _write_termination_log(self, code: int) -> None:
        if self._first_failure is None or code == 0:
            return
        with contextlib.suppress(OSError):
            Path(self._environment.termination_log).write_text(
                termination_message(self._first_failure)
            )


async def _let_save(pids: Sequence[int], until: float) -> None:
    """Wait while any of these processes writes."""
    written = -1 if pids else 0
    while time.monotonic() < until:
        if written == (written := bytes_written(pids)):
            return
        await asyncio.sleep(QUIET_SECONDS)


def run_worker() -> int:
    """The process of an agent, from the REGROUP_* variables to its exit code."""
    lines = log_to_stderr(os.environ.get(LOG_FORMAT))
    raise_open_files()  # of the ranks, too: the store has a connection of each of them
    try:
        environment = AgentEnvironment.read(dict(os.environ))
        token = read_token(environment.token_file)
    except ConfigurationError as error:
        log.error("the agent cannot start: %s", error)
        return WRONG_USAGE
    return asyncio.run(_run(environment, token, lines))


async def _run(environment: AgentEnvironment, token: str, lines: LineFormatter) -> int:
    try:
        agent = Agent(environment, token)
        lines.subject = agent.subject
        return await agent.run()
    finally:
        ignore_signals(signal.SIGTERM, signal.SIGCHLD)
