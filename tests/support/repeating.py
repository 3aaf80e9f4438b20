"""What happens again and again beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """Inside, a thread calls `act`, and again so many seconds after it has returned."""
    ends = threading.Event()

    def repeat() -> None:
        while True:
            act()
            if ends.wait(seconds):
                return

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
