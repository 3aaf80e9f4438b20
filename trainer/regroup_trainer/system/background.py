"""Runs a function in a thread that does not keep the process alive. Who waits for it can
distinguish work that takes long from a volume that is unresponsive, if the work notes its progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")
_note: ContextVar[Callable[[], object] | None] = ContextVar("note", default=None)


def note_progress() -> None:
    """Note that this thread's work gets on, for who may wait for it. It costs less than 1 us."""
    if note := _note.get():
        note()


@contextmanager
def progress_noted(note: Callable[[], object]) -> Iterator[None]:
    """`note` is called at once, and upon each progress of the work that follows in this thread."""
    token = _note.set(note)
    try:
        note()
        yield
    finally:
        _note.reset(token)


class Background(Generic[T]):
    """Runs `function` at once in a thread of its own. It should release the interpreter's lock.

    An executor does not serve: Python joins its threads at exit, so that a hung volume would keep
    the process from ending.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        """What an event loop can wait for."""
        threading.Thread(target=self._run, args=(function,), daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self.future.done()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; returns whether the function has ended."""
        wait([self.future], seconds)
        return self.done

    def result(self) -> T:
        """Wait for the end; raises what the function raised."""
        return self.future.result()

    def _run(self, function: Callable[[], T]) -> None:
        self.future.set_running_or_notify_cancel()  # from now on nobody can cancel it
        try:
            self.future.set_result(function())
        except BaseException as error:
            self.future.set_exception(error)
