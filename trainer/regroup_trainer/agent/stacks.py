"""Where the ranks are: each writes the stacks of its threads into a file when it is sent a signal.

The signal is answered by faulthandler from C, so a rank that is blocked in a collective or in the user's code answers
too; one that is frozen, or hangs in the kernel, does not. Torch-free.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from regroup_trainer.contract import GenerationRecord, Stack

SIGNAL = signal.SIGUSR1
ANSWER_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LIMIT = 16000
"""Bytes of a rank's answer that are told."""


def stack_file(directory: Path, local_rank: int) -> Path:
    """Where the rank at this place of the agent writes, whatever its generation."""
    return directory / f"{local_rank}.stacks"


def answer(path: Path) -> None:
    """From now on this process answers `SIGNAL` by writing its stacks to `path`."""
    faulthandler.register(SIGNAL, file=path.open("ab"), all_threads=True, chain=False)


async def collect(directory: Path, record: GenerationRecord, places: Mapping[int, int]) -> list[Stack]:
    """What ranks have written by the time that all have, or the deadline is over; empty for those who have not.

    `places` has the place of each at the agent. Call it right after the signal was ordered; the files hold nothing but
    the newest answer.
    """
    files = {rank: stack_file(directory, local_rank) for rank, local_rank in places.items()}
    deadline, before = time.monotonic() + ANSWER_SECONDS, dict.fromkeys(files, -1)
    while time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        sizes = {rank: _size(path) for rank, path in files.items()}
        if sizes == before and all(sizes.values()):
            break
        before = sizes
    return [Stack(generation=record.number, rank=rank, text=_take(path)) for rank, path in files.items()]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _take(path: Path) -> str:
    try:
        text = path.read_bytes()[-_LIMIT:].decode(errors="replace")
        path.write_bytes(b"")
    except OSError:
        return ""
    return text
