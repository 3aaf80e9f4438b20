"""The events of one job, whoever coordinates it: it forms, trains, loses an agent, and loses what
coordinates it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import Popen
from typing import ClassVar

import aiohttp

from bench.harness import Values
from bench.scale.players import Answer, Players
from bench.scale.settings import (
    ANSWER_SECONDS,
    EVENTS,
    FORM_SECONDS,
    MOST_MIB,
    RECOVERY_SECONDS,
    RESYNC_SECONDS,
    START_SECONDS,
    STATUSES,
    ScaleSize,
)
from devcluster.processes import cpu_seconds, memory_mib
from regroup_trainer.coordinator.coordinator_status import SHOWN_SECONDS

Report = Callable[[str], None]
GUARD_SECONDS, PROBE_SECONDS = 0.2, 0.05
LOG_CHARACTERS = 2000


class ScaleSubject(ABC):
    """One process that coordinates simulated agents."""

    can_resync: ClassVar[bool] = True
    """Whether the agents go on when that process is killed and started again."""

    def __init__(self, folder: Path, size: ScaleSize, report: Report) -> None:
        self.folder, self.size, self.report = folder, size, report
        self.term = 0

    @classmethod
    def can_run(cls, _report: Report) -> bool:
        """Whether it can run here; False, and a line with the cause: it cannot."""
        return True

    @abstractmethod
    def start(self) -> Popen[bytes]:
        """Start the process of the next term, which listens where the former one did."""

    @abstractmethod
    def players(self) -> Players:
        """Start the processes that play the agents."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether the process does what it is for."""

    def log_text(self) -> str:
        """The end of what its processes have written."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(log.read_text(errors="replace")[-LOG_CHARACTERS:] for log in logs)

    async def ask_status(self) -> bool:
        """Ask for the status; False: there is none."""
        return False

    async def happened(self) -> str:
        """What it says has happened to its agents."""
        return ""

    async def has_taken_over(self, _former: Answer) -> bool:
        """Whether the process of the second term, at which all agents are, has lost nobody."""
        return True


class ScaleCourse:
    """Measures a subject, until something does not come."""

    def __init__(self, subject: ScaleSubject) -> None:
        self._subject, self._report = subject, subject.report
        self.found: dict[str, float | None] = {}

    async def run(self) -> None:
        """Measure all. The processes end in any case."""
        self._start()
        guard = asyncio.create_task(self._guard())
        try:
            await self._until_it_answers()
            with self._subject.players() as self._players:
                await self._phases()
        except LookupError as gone:  # the process, of which CPU or memory was to be read
            self._give_up(f"{gone}: it has ended, perhaps at {MOST_MIB} MiB")
        except (TimeoutError, RuntimeError) as error:
            self._give_up(str(error) or f"nothing answers within {START_SECONDS:.0f} s")
        finally:
            guard.cancel()
            self._kill()

    def _give_up(self, why: str) -> None:
        """The first event that is missing did not come. Other runs follow."""
        missing = [name for name in EVENTS if name not in self.found]
        self.found.update(dict.fromkeys(missing[:1], 0.0))
        self._report(why)

    async def _phases(self) -> None:
        await self._ask("state", START_SECONDS)  # once they have started
        formed = await self._event("form", "formed", "form_seconds", FORM_SECONDS)
        if formed.done is None:
            return
        await self._train()
        await self._recover()
        if self._subject.can_resync:
            await self._resync()

    async def _event(self, do: str, whether: str, metric: str, limit: float) -> Answer:
        answer = await self._ask(do, limit)
        self.found[whether] = float(answer.done is not None)
        self.found[metric] = answer.seconds
        self._arrival(whether, answer, limit)
        return answer

    async def _train(self) -> None:
        """A steady job, in which nothing happens."""
        before = await self._ask("state")
        begun, cpu, played = time.monotonic(), cpu_seconds(self._pid), self._players.cpu_seconds()
        await asyncio.sleep(self._subject.size.steady_seconds)
        took = time.monotonic() - begun
        self.found["steady_cpu_share"] = 100 * (cpu_seconds(self._pid) - cpu) / took
        self.found["simulation_cpu_share"] = 100 * (self._players.cpu_seconds() - played) / took
        self.found["rss_mb"] = memory_mib(self._pid)
        state = await self._ask("state")
        self.found["steps_per_second"] = (state.step - before.step) / took if state.step else None
        self.found["heartbeat_lag_p99_seconds"] = state.lag if state.beats else None
        _, begun_before = state.generation
        self.found["needless_generations"] = begun_before - 1 if begun_before else None
        if begun_before > 1 and (events := await self._subject.happened()):
            self._report(f"a needless generation: {events}")
        if state.dropped:
            self._report(f"{state.dropped} messages did not fit into the queues of agents")
        self.found["status_seconds"] = await self._status_seconds()

    async def _recover(self) -> None:
        """It loses an agent, and the others train on."""
        begun, cpu = time.monotonic(), cpu_seconds(self._pid)
        lost = await self._event("lose", "recovered", "recovery_seconds", RECOVERY_SECONDS)
        await asyncio.sleep(self._subject.size.settle_seconds)
        trained = (self.found["steady_cpu_share"] or 0.0) / 100 * (time.monotonic() - begun)
        spent = max(0.0, cpu_seconds(self._pid) - cpu - trained)
        came = lost.done is not None
        self.found["recovery_cpu_seconds"] = spent if came else None
        self.found["megabytes_sent"] = lost.received / 1e6 if came and lost.received else None
        self.found["rss_peak_mb"] = memory_mib(self._pid, "VmHWM")

    async def _status_seconds(self) -> float | None:
        """The median of statuses that are built anew, and not those that are shown once more."""
        took = []
        for _ in range(STATUSES):
            await asyncio.sleep(self._subject.size.agents * SHOWN_SECONDS)
            begun = time.monotonic()
            if not await self._in_time("status", self._subject.ask_status()):
                return None
            took.append(time.monotonic() - begun)
        return statistics.median(took)

    async def _resync(self) -> None:
        """Kill what coordinates the agents, and start it again at once."""
        former = await self._ask("state")
        begun = time.monotonic()
        self._kill()
        self._start()
        back = await self._ask("resync", RESYNC_SECONDS, term=self._subject.term)
        at = self._arrival("back", back, RESYNC_SECONDS)
        whole = at is not None and await self._in_time(
            "successor", self._subject.has_taken_over(former)
        )
        self.found["resynced"] = float(whole)
        self.found["resync_seconds"] = at - begun if whole and at is not None else None

    async def _in_time(self, what: str, answer: Awaitable[bool]) -> bool:
        """The answer; False, and a line about it, where none comes in time."""
        try:
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except (TimeoutError, aiohttp.ClientError) as error:
            self._report(f"{what}: no answer within {ANSWER_SECONDS:.0f} s ({error!r:.100})")
            return False

    def _arrival(self, what: str, answer: Answer, limit: float) -> float | None:
        """When the last agent arrived; None, and a line about what happened, where not all did."""
        if answer.done is not None:
            return answer.done
        term, n = answer.generation
        where = f" (generation {term}.{n})" if term else ""
        self._report(
            f"{what}: none within {limit:.0f} s; {answer.arrived} of {answer.of} agents came{where}"
        )
        return None

    async def _ask(self, do: str, seconds: float = 0.0, **more: int) -> Answer:
        return await asyncio.to_thread(self._players.ask, do, seconds, **more)

    async def _until_it_answers(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while not await self._subject.answers():
                if self._process.poll() is not None:
                    raise RuntimeError(f"it ended at its start; {self._subject.log_text()}")
                await asyncio.sleep(PROBE_SECONDS)

    async def _guard(self) -> None:
        """End a process that takes too much memory of this machine."""
        while True:
            await asyncio.sleep(GUARD_SECONDS)
            with contextlib.suppress(LookupError):
                if memory_mib(self._pid) > MOST_MIB:
                    self._kill()

    @property
    def _pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        self._subject.term += 1
        self._process = self._subject.start()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run_course(
    make: Callable[[Path, ScaleSize, Report], ScaleSubject], size: ScaleSize, report: Report
) -> Values:
    """What one course of a subject has found."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two connections of each agent
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as name:
        course = ScaleCourse(make(Path(name), size, report))
        asyncio.run(course.run())
    return course.found
