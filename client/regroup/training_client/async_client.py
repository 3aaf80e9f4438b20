"""The client for programs with an event loop: the same calls, each in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from regroup.local.checkpoint_list import SavedCheckpoint
from regroup.training_client.job import Job
from regroup.training_client.progress_display import progress_shown
from regroup.training_client.training_client import RUNS_FOLDER, TrainingClient
from regroup.training_client.training_job import TrainingJob, TrainOptions
from regroup.training_client.weight_stream import MOST_BYTES
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_trainer.protocol.job_status import SeriesPoint

if TYPE_CHECKING:
    from regroup.training_client.weights import StateDict

WAIT_SECONDS = 5.0
"""After so long a wait begins again: a cancelled one leaves its thread behind for as long."""


class AsyncJob:
    """As Job. Its methods raise what those of Job raise."""

    def __init__(self, job: Job) -> None:
        self.job = job
        """The same job for synchronous calls."""

    @property
    def name(self) -> str:
        """Of the job."""
        return self.job.name

    @property
    def code(self) -> str:
        """In which form its code was sent, and why."""
        return self.job.code

    async def status(self) -> TrainingJobStatus:
        """How the job is now."""
        return await asyncio.to_thread(lambda: self.job.status)

    async def wait(
        self,
        timeout: float | None = None,
        *,
        phase: Phase = "Succeeded",
        progress: bool | None = None,
    ) -> TrainingJobStatus:
        """As Job.wait."""
        end = None if timeout is None else time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        with progress_shown(progress) as show:
            while True:
                left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, end - time.monotonic())
                try:
                    return await asyncio.to_thread(
                        self.job._wait_showing,
                        max(0.0, left),
                        phase,
                        lambda status: loop.call_soon_threadsafe(show, status),
                    )
                except TimeoutError as error:
                    if timeout is not None and left < WAIT_SECONDS:
                        raise TimeoutError(f"{error} ({timeout:g} s in all)") from None

    async def logs(
        self, *, follow: bool = False, rank: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of Job.logs as they come."""
        lines: asyncio.Queue[str | BaseException | None] = asyncio.Queue(1000)
        loop, has_left = asyncio.get_running_loop(), threading.Event()

        def put(item: str | BaseException | None) -> None:
            if loop.is_closed() or has_left.is_set():
                raise RuntimeError
            asyncio.run_coroutine_threadsafe(lines.put(item), loop).result()

        def read() -> None:
            with suppress(RuntimeError):  # of put: nobody reads any more
                try:
                    for line in self.job.logs(follow=follow, rank=rank):
                        put(line)
                    put(None)
                except Exception as error:
                    put(error)

        threading.Thread(target=read, daemon=True, name="regroup-logs").start()
        try:
            while (item := await lines.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:  # the thread may wait for room in the queue
            has_left.set()
            while not lines.empty():
                lines.get_nowait()

    async def metrics(self) -> list[SeriesPoint]:
        """As Job.metrics."""
        return await asyncio.to_thread(self.job.metrics)

    async def checkpoints(self) -> list[SavedCheckpoint]:
        """As Job.checkpoints."""
        return await asyncio.to_thread(self.job.checkpoints)

    async def load_state_dict(
        self, step: int | None = None, *, max_bytes: int = MOST_BYTES
    ) -> StateDict:
        """As Job.load_state_dict."""
        return await asyncio.to_thread(self.job.load_state_dict, step, max_bytes=max_bytes)

    async def scale(self, workers: int) -> None:
        """As Job.scale."""
        await asyncio.to_thread(self.job.scale, workers)

    async def suspend(self) -> None:
        """As Job.suspend."""
        await asyncio.to_thread(self.job.suspend)

    async def resume(self) -> None:
        """As Job.resume."""
        await asyncio.to_thread(self.job.resume)

    async def delete(self) -> None:
        """As Job.delete."""
        await asyncio.to_thread(self.job.delete)


class AsyncTrainingClient:
    """As TrainingClient; an asynchronous context manager."""

    def __init__(
        self,
        backend: Literal["kubernetes", "local"] = "kubernetes",
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        directory: str | Path = RUNS_FOLDER,
    ) -> None:
        self._client = TrainingClient(
            backend,
            namespace=namespace,
            context=context,
            kubeconfig=kubeconfig,
            directory=directory,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._client.close()

    async def train(
        self,
        func: Callable[..., object] | None = None,
        *,
        script: str | Path | None = None,
        job: TrainingJob | None = None,
        **options: Unpack[TrainOptions],
    ) -> AsyncJob:
        """As TrainingClient.train."""
        made = await asyncio.to_thread(
            lambda: self._client.train(func, script=script, job=job, **options)
        )
        return AsyncJob(made)

    async def job(self, name: str) -> AsyncJob:
        """As TrainingClient.job."""
        return AsyncJob(await asyncio.to_thread(self._client.job, name))
