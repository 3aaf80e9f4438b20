"""A job of this machine: a local run in a thread, which ends with this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, cast

from regroup.local.checkpoint_list import MODULE, SavedCheckpoint, list_command
from regroup.local.local_desired import local_desired, ranks_per_worker
from regroup.local.local_run import LocalRun, LocalRunError
from regroup.local.local_status import job_status
from regroup.local.log_lines import LogLines
from regroup.local.run_folder import explain
from regroup.local.run_lock import FolderError, is_held
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.job import Job, checkpoints_of, points_of, require_workers
from regroup.training_client.weight_stream import ProgramEnd, WeightStream, no_checkpoint
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.user_script import user_script
from regroup_trainer.protocol.job_status import SERIES_FILE, Outcome, SeriesPoint
from regroup_trainer.protocol.lineage_files import CHECKPOINTS_FOLDER
from regroup_trainer.protocol.message import TEXT_LIMIT

LOOK_SECONDS = 0.1
START_SECONDS = 30.0
"""For a thread to begin its work."""
ANSWER_SECONDS = 10.0
CHUNK_BYTES = 2**20
log = logging.getLogger("regroup")


@dataclass
class LocalJob(Job):
    """A job with its processes and its folder here."""

    name: str
    spec: TrainingJobSpec
    directory: Path
    working_directory: Path
    code: str = ""
    _attempt: _Attempt | None = None
    _workers: int | None = None
    """As `scale` has set it."""
    _is_suspended: bool = False
    """Whether its end was asked for by `suspend`, and no `resume` came since."""

    def start(self) -> None:
        """Begin to train. Raises TrainingClientError for workers that cannot be."""
        try:
            desired = local_desired(self.spec, self.name, str(self.directory), self._workers)
        except ValueError as error:
            raise TrainingClientError(f"workers: {error}") from None
        run = LocalRun(desired, ranks_per_worker(self.spec))
        if script := user_script(self.spec.template):
            run.working_directory = self.working_directory
            run.variables = {**script.environment, **script.variables}
        self._attempt = _Attempt(run, self.directory)
        self._attempt.start()

    @property
    def status(self) -> TrainingJobStatus:
        """As the coordinator reports it."""
        attempt = self._attempt
        if attempt is None:
            return TrainingJobStatus(phase="Pending", message="it was not started")
        return job_status(attempt.run.status, attempt.outcome, attempt.run.desired.replicas)

    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """The lines of the files below `logs` in its folder, worker by worker."""
        read: dict[Path, LogLines] = {}
        begin = "rank " if rank is None else f"rank {rank}: "
        while True:
            ended = not follow or self._has_stopped()
            for path in sorted((self.directory / "logs").glob(f"{self.name}-w*.log")):
                lines = read.setdefault(path, LogLines(path)).of_ranks(has_ended=ended)
                yield from (line for line in lines if line.startswith(begin))
            if ended:
                return
            time.sleep(LOOK_SECONDS)

    def metrics(self) -> list[SeriesPoint]:
        """From the coordinator while it runs, then from the job's folder."""
        attempt = self._attempt
        if attempt is not None and (text := attempt.series()):
            return points_of(text)
        try:
            return points_of((self.directory / SERIES_FILE).read_bytes())
        except FileNotFoundError:
            raise TrainingClientError(
                f"metrics: job {self.name} has none yet: wait until it is Running"
            ) from None

    def scale(self, workers: int) -> None:
        """Within the bounds of the spec."""
        require_workers(workers)
        least, most = self.spec.min_replicas, self.spec.max_replicas
        if not least <= workers <= most:
            raise TrainingClientError(
                f"workers: {workers}: the job has {least} to {most}: give train() other workers="
            )
        self._workers = workers
        self._do(lambda run: run.scale(workers))

    def suspend(self) -> None:
        """It returns at once; wait(phase='Suspended') waits for the end."""
        self._is_suspended = True
        self._do(LocalRun.suspend)

    def resume(self) -> None:
        """Begin again from its folder, once it is suspended; nothing while it trains."""
        if self._attempt is not None:
            if not self._is_suspended and not self._has_stopped():
                return
            self._attempt.join()
            if self.status.phase != "Suspended":
                raise TrainingClientError(
                    f"job {self.name} is {self.status.phase}: only a suspended job can be resumed"
                )
        self._is_suspended = False
        self.start()

    def checkpoints(self) -> list[SavedCheckpoint]:
        """As `regroup checkpoint list` shows them."""
        if not (self.directory / CHECKPOINTS_FOLDER).exists():
            return []  # of a script that saves by itself, and before the first
        words = [sys.executable, "-m", MODULE, *list_command(str(self.directory))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TrainingClientError(f"checkpoints: {' '.join(done.stderr.split())}")
        return checkpoints_of(done.stdout)

    @contextlib.contextmanager
    def _weights(self, step: int | None) -> Iterator[WeightStream]:
        """From a process of the moment, which ends with the reading."""
        if not (self.directory / CHECKPOINTS_FOLDER).exists():
            raise no_checkpoint(self.name)
        chosen = [] if step is None else ["--step", str(step)]
        words = [sys.executable, "-m", MODULE, "export", str(self.directory), "--out", "-", *chosen]
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr) as process,
        ):
            out = cast("IO[bytes]", process.stdout)

            def end() -> ProgramEnd:
                code = process.wait()
                stderr.seek(0)
                return ProgramEnd(code, stderr.read().decode(errors="replace"))

            try:
                yield WeightStream(
                    str(self.directory), iter(partial(out.read, CHUNK_BYTES), b""), end
                )
            finally:
                process.kill()

    def delete(self) -> None:
        """Kill its processes, and remove its folder with the checkpoints. Raises
        TrainingClientError where another run has the folder.
        """
        if self._attempt is not None:
            self._attempt.kill()
        if is_held(self.directory):
            raise TrainingClientError(f"delete: another run has {self.directory} now: it stays")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _statuses(self, timeout: float | None) -> Iterator[TrainingJobStatus]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            yield self.status
            if end is not None and time.monotonic() > end:
                return
            time.sleep(LOOK_SECONDS)

    def _has_stopped(self) -> bool:
        return self._attempt is None or self._attempt.outcome is not None

    def _do(self, act: Callable[[LocalRun], object]) -> None:
        if self._attempt is not None:
            self._attempt.do(act)


@dataclass
class _Attempt:
    """One run, from its start to its end or suspension, in a thread of its own."""

    run: LocalRun
    directory: Path
    outcome: Outcome | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Outcome] | None = None
    _begun: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        # A daemon: processes of the run end with the thread that has started them.
        self._thread = threading.Thread(target=self._train, daemon=True, name="regroup-local-job")
        self._thread.start()
        self._begun.wait(START_SECONDS)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def do(self, act: Callable[[LocalRun], object]) -> None:
        """Call it from the run's event loop, unless the run has ended."""
        if self._loop is not None and self.outcome is None:
            with contextlib.suppress(RuntimeError):  # it ends at this moment
                self._loop.call_soon_threadsafe(act, self.run)

    def kill(self) -> None:
        if (task := self._task) is not None:
            self.do(lambda _run: task.cancel())
        self.join()

    def series(self) -> bytes:
        """What its coordinator answers; empty where there is none."""
        if self._loop is None or self.outcome is not None:
            return b""
        asked = asyncio.run_coroutine_threadsafe(self.run.series(), self._loop)
        try:
            return asked.result(ANSWER_SECONDS)
        except (OSError, TimeoutError, asyncio.CancelledError):
            return b""

    def _train(self) -> None:
        try:
            asyncio.run(self._run())
        finally:
            self._begun.set()

    async def _run(self) -> None:
        """Set the outcome, whatever happens: callers wait for it."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(self.run.run())
        self._begun.set()
        try:
            self.outcome = await self._task
        except asyncio.CancelledError:
            self.outcome = _failure("it was deleted")
        except (LocalRunError, FolderError) as error:
            self.outcome = _failure(str(error))
        except OSError as error:
            self.outcome = _failure(explain(error, self.directory))
        except Exception as error:
            log.exception("the local run of %s ends", self.run.desired.job)
            self.outcome = _failure(f"{type(error).__name__}: {error}")


def _failure(message: str) -> Outcome:
    return Outcome(result="failed", message=message[:TEXT_LIMIT])
