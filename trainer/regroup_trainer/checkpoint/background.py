"""Work beside the training: a function in a thread that does not keep the process alive. Torch-free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs `function` at once in a thread of its own. What it does should release the interpreter's lock.

    Not an executor: its threads would be joined at exit, and a hung volume must not hold a process that is to end.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(function,), daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has ended, either way."""
        return self._future.done()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, so long at most; whether it has come."""
        wait([self._future], seconds)
        return self.done

    def result(self) -> T:
        """Wait for the end; raises what the function raised."""
        return self._future.result()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._future.set_result(function())
        except BaseException as error:
            self._future.set_exception(error)
