"""The agent: carries out what the coordinator says, and tells it what its ranks say and how they end.

Everything runs in one event loop, but the heartbeats (a thread of their own) and torch (the template process).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regroup_trainer.agent import stacks
from regroup_trainer.agent.endpoint import port_of, start_endpoint
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.agent.line import Line, RejectedError
from regroup_trainer.agent.memory import Memory
from regroup_trainer.agent.metrics import AgentMetrics
from regroup_trainer.agent.rank_sockets import RankSockets
from regroup_trainer.agent.snapshots import Snapshots
from regroup_trainer.agent.template_process import TemplateProcess
from regroup_trainer.agent.template_protocol import (
    ForkRank,
    KeptRank,
    KillRanks,
    RankEnded,
    Ready,
    ShowStacks,
    StartStore,
    StoreEnded,
    StoreStarted,
    TemplateNews,
    TerminateRanks,
)
from regroup_trainer.agent.termination import oom_kills, rank_exit, termination_message
from regroup_trainer.contract import (
    Assignment,
    Begin,
    CoordinatorMessage,
    Decide,
    Diagnose,
    Exit,
    Finished,
    GenerationNumber,
    GenerationRecord,
    HeldSnapshots,
    LeaveWorld,
    Leaving,
    RankExit,
    RankReport,
    SnapshotComplete,
    SnapshotsOff,
    SnapshotTaken,
    Stack,
    Welcome,
)
from regroup_trainer.environment import AgentEnvironment

LEAVE_SECONDS = 20.0
"""Without a coordinator to agree with, an agent that was asked to go waits no longer."""
EXIT_REJECTED = 2
EXIT_TEMPLATE_LOST = 70
EXIT_TERMINATED = 128 + signal.SIGTERM
HEARTBEAT_SECONDS = 0.5
"""Until the first generation tells the job's own interval."""

log = logging.getLogger(__name__)


class Agent:
    """One worker. `run` returns the exit code of the pod."""

    def __init__(self, environment: AgentEnvironment, token: str) -> None:
        self._environment = environment
        self._token = token
        self._memory = Memory(environment)
        self._metrics = AgentMetrics(environment.namespace, environment.job)
        self._template = TemplateProcess(self._on_news, self._on_template_end, environment.start)
        self._line = Line(environment.coordinator_url, token, self._memory.hello, self._on_message)
        loop = asyncio.get_running_loop()
        self._heartbeat = Heartbeat(
            environment.coordinator_url,
            token,
            environment.member,
            HEARTBEAT_SECONDS,
            on_unknown=lambda: loop.call_soon_threadsafe(self._line.reconnect),
        )
        self._sockets: RankSockets | None = None
        self._snapshots: Snapshots | None = None
        self._result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._warm = asyncio.Event()
        self._leaving = ""
        self._assignments: list[Assignment] = []
        """Of the ranks of the current generation."""
        self._oom_kills = 0
        self._first_failure: RankExit | None = None
        self._terminated: set[tuple[GenerationNumber, int]] = set()
        """Ranks that were asked to end by a signal: that they do is nobody's fault."""
        self._diagnosing: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Live until the coordinator, a signal or a failure ends this member."""
        self._listen_to_signals()
        with tempfile.TemporaryDirectory(prefix="regroup-") as directory:
            snapshots = self._snapshots = self._open_snapshots(Path(directory))
            endpoint = await start_endpoint(self._metrics, snapshots.keeper, self._environment.metrics_port)
            self._memory.endpoint = f"{self._environment.address}:{port_of(endpoint, self._environment.address)}"
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
                self._template.kill()
                snapshots.close()
                if self._sockets is not None:
                    self._sockets.close()
                await endpoint.cleanup()
        self._write_termination_log(code)
        return code

    def _open_snapshots(self, directory: Path) -> Snapshots:
        environment = self._environment
        return Snapshots(directory, environment.member, environment.ranks, self._token, self._on_snapshots)

    def _on_snapshots(self, news: HeldSnapshots | SnapshotsOff) -> None:
        if isinstance(news, HeldSnapshots):
            self._memory.snapshots = news.snapshots
        self._line.send(news)

    def _outcome(self, working: asyncio.Task[None]) -> int:
        error = working.exception()
        if not isinstance(error, RejectedError):
            raise error or RuntimeError("the line to the coordinator ended")
        log.error("%s", error)
        return EXIT_REJECTED

    async def _work(self, directory: Path) -> None:
        self._sockets = RankSockets(directory / "ranks.sock", self._on_report)
        await self._sockets.start()
        await self._template.start(self._environment.entry, directory)
        await self._warm.wait()
        self._heartbeat.start()
        await self._line.run()

    # --- the coordinator speaks --------------------------------------------------------------------------------------

    def _on_message(self, message: CoordinatorMessage) -> None:
        match message:
            case Welcome():
                if self._leaving:
                    self._line.send(Leaving(reason=self._leaving))
            case Begin(record=record):
                self._begin(record)
            case Decide() if self._sockets and self._memory.is_current(message.generation):
                self._sockets.decide(message)
            case LeaveWorld() if self._sockets and self._memory.is_current(message.generation):
                self._sockets.leave_world(message)
                self._terminate_deaf(message.generation)
                hangs = [rank for rank in self._memory.running() if rank == message.stuck]
                self._give_up(message.generation, hangs, "it hung and was killed")
                self._releasing = asyncio.create_task(self._give_up_stuck(message))
            case Diagnose() if self._memory.is_current(message.generation):
                self._diagnosing = asyncio.create_task(self._diagnose())
            case SnapshotComplete(number=number) if self._snapshots:
                self._snapshots.complete(number)
            case Exit(code=code, reason=reason):
                log.info("ends with code %d: %s", code, reason)
                self._end(code)

    def _begin(self, record: GenerationRecord) -> None:
        former, standing = self._memory.record, self._memory.standing()
        if not self._memory.begin(record) or self._sockets is None or self._snapshots is None:
            return
        ranks = self._memory.local_ranks()
        log.info("generation %s: ranks %s of %d", record.number, list(ranks), record.world_size)
        self._line.drop_unsent_reports()
        self._sockets.forget()
        self._metrics.begin(record, ranks)
        self._heartbeat.seconds = record.desired.heartbeat_milliseconds / 1000
        self._first_failure = None
        self._oom_kills = oom_kills()
        free_slots = self._snapshots.begin(record)
        self._assignments = [
            Assignment(
                record=record,
                rank=rank,
                local_rank=local_rank,
                channel=str(self._sockets.path),
                snapshots=self._snapshots.folder,
                free_slot=free_slots[local_rank],
            )
            for local_rank, rank in enumerate(ranks)
        ]
        kept = [a for a in self._assignments if record.rung == "L0" and a.local_rank in standing]
        self._template.order(KillRanks(kept=tuple(KeptRank(rank=standing[a.local_rank], assignment=a) for a in kept)))
        for assignment in self._assignments:
            if assignment not in kept:
                self._template.order(ForkRank(assignment=assignment, threads=threads_per_rank(len(ranks))))
            elif former is not None:
                self._sockets.enter(former.number, standing[assignment.local_rank], assignment)

    def _terminate_deaf(self, generation: GenerationNumber) -> None:
        """A program without a Session does not listen to us: it gets a signal, and the time to save."""
        assert self._sockets is not None
        deaf = tuple(rank for rank in self._memory.running() if not self._sockets.hears(generation, rank))
        if deaf:
            self._terminated.update((generation, rank) for rank in deaf)
            self._template.order(TerminateRanks(ranks=deaf))

    async def _give_up_stuck(self, order: LeaveWorld) -> None:
        """Ranks that did not come out of a world that is over in time, whatever they are stuck in, are killed."""
        await asyncio.sleep(order.seconds)
        if not self._memory.is_current(order.generation) or not self._memory.running():
            return
        await self._stacks(self._memory.running(), f"not out of its world after {order.seconds:.0f} s")
        if self._memory.is_current(order.generation):
            why = f"it did not leave its world within {order.seconds:.0f} s and was killed"
            self._give_up(order.generation, self._memory.running(), why)

    def _give_up(self, generation: GenerationNumber, ranks: Sequence[int], why: str) -> None:
        if not ranks:
            return
        kept = [KeptRank(rank=a.rank, assignment=a) for a in self._assignments if a.rank not in ranks]
        self._template.order(KillRanks(kept=tuple(kept)))
        for rank in ranks:
            self._tell_end(
                RankExit(generation=generation, rank=rank, exit_code=137, signal=9, cause="peer", message=why)
            )

    async def _diagnose(self) -> None:
        """Tell where the ranks are, here and to the coordinator."""
        for stack in await self._stacks(self._memory.local_ranks(), "no step comes"):
            self._line.send(stack)

    async def _stacks(self, ranks: Sequence[int], why: str) -> list[Stack]:
        """Where these ranks are; it is in the log, too."""
        record, place = self._memory.record, self._memory.local_ranks().start
        if record is None or self._sockets is None:
            return []
        self._template.order(ShowStacks(ranks=tuple(ranks)))
        found = await stacks.collect(self._sockets.path.parent, record, {rank: rank - place for rank in ranks})
        for stack in found:
            log.warning("rank %d: %s; it is here:\n%s", stack.rank, why, stack.text or "(no answer)")
        return found

    # --- ranks and template speak ------------------------------------------------------------------------------------

    def _on_report(self, report: RankReport) -> None:
        if not self._memory.is_current(report.generation):
            return
        if isinstance(report, SnapshotTaken) and self._snapshots:
            self._snapshots.take(report)
            return
        self._memory.note(report)
        self._metrics.note(report)
        self._line.send(report)

    def _on_news(self, news: TemplateNews) -> None:
        match news:
            case Ready():
                self._template.order(StartStore(address=self._environment.address))
            case StoreStarted(port=port):
                self._memory.store = f"{self._environment.address}:{port}"
                self._warm.set()
                self._line.say_hello_again()
            case StoreEnded():
                log.error("the store process ended; starting another")
                self._template.order(StartStore(address=self._environment.address))
            case RankEnded():
                self._on_rank_end(news)

    def _on_rank_end(self, end: RankEnded) -> None:
        now = self._memory.rank_now(end.generation, end.rank)
        if end.killed or now is None or self._memory.record is None:
            return
        # One that stood by may have died when the next generation had begun for us, but not for the template.
        end = end.model_copy(update={"generation": self._memory.record.number, "rank": now})
        if end.exit_code == 0 and isinstance(self._memory.ended.get(end.rank), Finished):
            return
        untold = self._memory.untold(end.rank, end.step, end.time)
        if untold is not None:
            self._on_report(untold)
        report = rank_exit(end, oom=oom_kills() > self._oom_kills)
        if (end.generation, end.rank) in self._terminated:
            report = report.model_copy(update={"cause": "peer"})
        log.error("rank %d ended with code %d (%s)", report.rank, report.exit_code, report.cause)
        if report.cause != "peer":
            self._first_failure = self._first_failure or report
        self._tell_end(report)

    def _tell_end(self, report: RankExit) -> None:
        self._memory.ended.pop(report.rank, None)
        self._memory.note(report)
        self._line.send(report)

    def _on_template_end(self) -> None:
        log.error("the template process ended, and all ranks with it")
        self._end(EXIT_TEMPLATE_LOST)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)

    def _on_sigterm(self) -> None:
        if self._leaving:
            return
        self._leaving = "the worker was asked to end (SIGTERM)"
        log.info("%s", self._leaving)
        if self._memory.highest is None and not self._line.welcomed:
            self._end(EXIT_TERMINATED)
            return
        if self._line.welcomed:
            self._line.send(Leaving(reason=self._leaving))
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._leave_alone)

    def _leave_alone(self) -> None:
        """Go without an agreement when there is nobody to agree with."""
        if not self._line.welcomed:
            log.warning("no coordinator within %.0f s; ending the ranks", LEAVE_SECONDS)
            self._end(EXIT_TERMINATED)
        else:
            asyncio.get_running_loop().call_later(1.0, self._leave_alone)

    def _reap_orphans(self) -> None:
        """As PID 1, bury what other processes of this pod left behind; the template is waited for on its own."""
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid == self._template.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    def _end(self, code: int) -> None:
        if not self._result.done():
            self._result.set_result(code)

    def _write_termination_log(self, code: int) -> None:
        if self._first_failure is None or code == 0:
            return
        with contextlib.suppress(OSError):
            Path(self._environment.termination_log).write_text(termination_message(self._first_failure))


def threads_per_rank(local_ranks: int) -> int:
    """Threads for a rank's tensor operations: OMP_NUM_THREADS if the user set it, else an equal share of the CPUs."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return max(1, len(os.sched_getaffinity(0)) // local_ranks)
