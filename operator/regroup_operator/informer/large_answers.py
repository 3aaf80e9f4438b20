"""Decodes large answers of the API server beside the event loop, which all tenants share.

Decoding holds the lock of the interpreter, also in a thread: nothing else runs until it ends. So
one answer is decoded at a time, and a rest follows that leaves most of the thread to others.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

from regroup_operator.informer.fair_places import FairPlaces
from regroup_operator.observe.bounded_json import UndecodableError, decode

REST = 2.0
"""Times what a decoding took, until the next: large answers take a third of the thread."""


class LargeAnswers:
    """Decodes one answer at a time. Namespaces that wait take turns."""

    def __init__(self) -> None:
        self._turns = FairPlaces(1, 1)
        self._rested_at = 0.0
        """When the next one may begin; monotonic time."""

    async def decode(self, namespace: str, data: bytes) -> Any:
        """As `bounded_json.decode`. `namespace` is whose answer it is; empty: that of none."""
        async with self._turns.place(namespace):
            await asyncio.sleep(self._rested_at - time.monotonic())
            found, seconds = await asyncio.to_thread(_decode, data)
            self._rested_at = time.monotonic() + REST * seconds
        if isinstance(found, UndecodableError):
            raise found
        return found


def _decode(data: bytes) -> tuple[Any, float]:
    """The value, or the error, and the seconds of the processor that it took.

    What is decoded holds no cycles. Looking for some meanwhile took up to six times as long as
    decoding, since each list counts as a reason to look.
    """
    began, is_collecting = time.thread_time(), gc.isenabled()
    gc.disable()
    try:
        found = decode(data)
    except UndecodableError as error:
        found = error
    finally:
        if is_collecting:
            gc.enable()
    return found, time.thread_time() - began
