"""What a caller does with a job, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from regroup.local.checkpoint_list import SavedCheckpoint, read_list
from regroup.training_client.client_errors import JobFailedError, TrainingClientError
from regroup.training_client.progress_display import progress_shown
from regroup.training_client.weight_stream import MOST_BYTES, WeightStream
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_trainer.protocol.extras import missing_extra
from regroup_trainer.protocol.job_status import Series, SeriesPoint

if TYPE_CHECKING:
    from regroup.training_client.weights import StateDict


class Job(ABC):
    """A job that was submitted. Methods raise ClusterError where a cluster refuses."""

    name: str
    code: str = ""
    """In which form its code was sent, and why; empty where none was."""

    @property
    @abstractmethod
    def status(self) -> TrainingJobStatus:
        """How the job is now."""

    @abstractmethod
    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield what its ranks have written, as `rank N: ...`; with `follow` until the job ends."""

    @abstractmethod
    def metrics(self) -> list[SeriesPoint]:
        """Loss and rates over time, oldest first, at most 2,000 points, as the coordinator keeps
        them. On a cluster it takes seconds when the job rests: a pod reads what was kept.

        Raises TrainingClientError before a coordinator runs, and where nothing was kept.
        """

    @abstractmethod
    def scale(self, workers: int) -> None:
        """Have it train with so many workers, within its bounds. Raises TrainingClientError."""

    @abstractmethod
    def suspend(self) -> None:
        """Have it save, and give its workers back."""

    @abstractmethod
    def resume(self) -> None:
        """Have it train on after `suspend`."""

    @abstractmethod
    def checkpoints(self) -> list[SavedCheckpoint]:
        """Its checkpoints, the newest first. On a cluster a worker lists them, or a pod of the
        moment where the job is suspended or has ended. Who may make no pod sees the newest alone.
        """

    def load_state_dict(self, step: int | None = None, *, max_bytes: int = MOST_BYTES) -> StateDict:
        """The weights of a checkpoint by name, on the CPU; by default of the newest that the job
        may resume from. They are read as safetensors, and their checksum is compared.

        Raises TrainingClientError where there is no such checkpoint, or more than `max_bytes`.
        """
        if (missing := missing_extra("trainer", ("torch",))) is not None:
            raise TrainingClientError(f"load_state_dict: {missing}")
        from regroup.training_client.weights import state_dict

        with self._weights(step) as stream:
            return state_dict(stream, max_bytes)

    @abstractmethod
    def _weights(self, step: int | None) -> AbstractContextManager[WeightStream]:
        """Inside, what writes the weights runs. Raises TrainingClientError."""

    @abstractmethod
    def delete(self) -> None:
        """Stop and remove it. A claim with its checkpoints stays."""

    @abstractmethod
    def _statuses(self, timeout: float | None) -> Iterator[TrainingJobStatus]:
        """Yield the status, and again after each change, for so many seconds."""

    def wait(
        self,
        timeout: float | None = None,
        *,
        phase: Phase = "Succeeded",
        progress: bool | None = None,
    ) -> TrainingJobStatus:
        """Wait until the job is in this phase; returns its status. It may have `Succeeded` before
        it was seen in another one. `progress`: show it; by default on a terminal
        and in a notebook.

        Raises JobFailedError when the job fails, TimeoutError after `timeout` seconds, and
        TrainingClientError where a cluster's operator refuses the spec.
        """
        with progress_shown(progress) as show:
            return self._wait_showing(timeout, phase, show)

    def _wait_showing(
        self, timeout: float | None, phase: Phase, show: Callable[[TrainingJobStatus], object]
    ) -> TrainingJobStatus:
        """As `wait`, with a function that shows each status."""
        status = None
        for status in self._statuses(timeout):
            show(status)
            if status.phase in (phase, "Succeeded"):
                return status
            if status.phase == "Failed":
                raise JobFailedError(self.name, status)
        raise TimeoutError(
            f"job {self.name} is {_phase(status)} after {timeout:g} s, and not {phase}: "
            f"{status.message if status else ''}; it goes on"
        )


def _phase(status: TrainingJobStatus | None) -> str:
    return (status and status.phase) or "Unknown"


def points_of(text: str | bytes) -> list[SeriesPoint]:
    """The points of a coordinator's series. Raises TrainingClientError."""
    try:
        return list(Series.model_validate_json(text).points)
    except ValueError:
        raise TrainingClientError(
            "metrics: what the coordinator answers cannot be read: use a client of its release"
        ) from None


def checkpoints_of(text: str) -> list[SavedCheckpoint]:
    """What the command that lists checkpoints prints. Raises TrainingClientError."""
    try:
        return read_list(text)
    except ValueError:
        raise TrainingClientError(
            "checkpoints: what the job lists cannot be read: use a client of its release"
        ) from None


def require_workers(workers: int) -> None:
    """Raises TrainingClientError for a number that no job can have."""
    if workers < 1:
        raise TrainingClientError(f"workers: {workers}: give a number from 1; suspend() stops all")
