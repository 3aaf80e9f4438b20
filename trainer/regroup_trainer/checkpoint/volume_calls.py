"""Calls on the volume, which may refuse them, or not answer for minutes. Torch-free.

They run in threads, so that no main thread waits for the volume without a deadline. They are
repeated with longer and longer pauses. What they meet is kept, to be reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from regroup_trainer.protocol.message import TEXT_LIMIT, printable
from regroup_trainer.protocol.rank_messages import VolumeProblem
from regroup_trainer.system.background import Background, progress_noted
from regroup_trainer.system.backoff import retry_seconds

T = TypeVar("T")
SLOW_SECONDS = 5.0
"""A call that does not get on for longer is reported."""
_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 5.0


def describe(error: OSError) -> str:
    """A sentence about a problem with the storage."""
    if error.filename:
        return f"{printable(str(error.filename))}: {error.strerror}"
    return error.strerror or str(error)


class VolumeHealth:
    """What one thread meets on the volume below `path`. Any thread may ask for the problem."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._called: tuple[float, float] | None = None
        """Monotonic time and wall clock since when the call under way does not get on."""
        self._failing: tuple[float, str] | None = None
        """Wall clock of the first failure in a row, and the last error."""

    @property
    def failure(self) -> str:
        """What the last attempt met; empty where it has not failed."""
        return self._failing[1] if self._failing else ""

    def problem(self, at_risk: str) -> VolumeProblem | None:
        """What is wrong now, if anything is; `at_risk` says what is lost if this goes on."""
        called, failing = self._called, self._failing
        if failing is not None:
            return self._problem(failing[0], failing[1], at_risk)
        if called is None or time.monotonic() - called[0] < SLOW_SECONDS:
            return None
        return self._problem(called[1], "the volume does not answer", at_risk)

    def _note_progress(self) -> None:
        self._called = time.monotonic(), time.time()

    def _problem(self, since: float, error: str, at_risk: str) -> VolumeProblem:
        path = str(self._path)[:TEXT_LIMIT]
        return VolumeProblem(path=path, error=error[:TEXT_LIMIT], since=since, at_risk=at_risk)

    def insist(
        self, action: Callable[[], T], is_final: Callable[[OSError], bool], stop: threading.Event
    ) -> T:
        """The result of `action`, however many attempts it takes.

        Raises an OSError that `is_final`, the last one after `stop` is set, and what else the
        action raises.
        """
        failures = 0
        while True:
            try:
                with progress_noted(self._note_progress):
                    result = action()
            except OSError as error:
                failures += 1
                pause = retry_seconds(failures, _RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
                since = self._failing[0] if self._failing else time.time()
                self._failing = since, describe(error)
                if is_final(error) or stop.wait(pause):
                    raise
            else:
                self._failing = None
                return result
            finally:
                self._called = None


class VolumeCall(Generic[T]):
    """An action in a thread of its own that insists; see `VolumeHealth.insist`."""

    def __init__(
        self, action: Callable[[], T], path: Path, is_final: Callable[[OSError], bool]
    ) -> None:
        self.path = path
        self._health = VolumeHealth(path)
        self._stop = threading.Event()
        self._work = Background(lambda: self._health.insist(action, is_final, self._stop))

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; returns whether it has come."""
        return self._work.wait(seconds)

    def result(self) -> T:
        """Wait for the end; raises what the action raised."""
        return self._work.result()

    def abandon(self) -> None:
        """Begin no further attempt."""
        self._stop.set()

    def problem(self, at_risk: str) -> VolumeProblem | None:
        """As `VolumeHealth.problem`."""
        return self._health.problem(at_risk)
