"""The stacks of ranks: each writes those of its threads into a file when it gets a signal.

Faulthandler answers the signal from C. So a rank that is blocked in a collective, or in the user's
code, answers too. A rank that is frozen, or hangs in the kernel, does not. Torch-free.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from regroup_trainer.protocol.agent_messages import Stack
from regroup_trainer.protocol.generation import GenerationRecord

SIGNAL = signal.SIGRTMAX  # programs use SIGUSR1 and SIGUSR2 themselves
ANSWER_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LIMIT = 16000
"""Bytes of a rank's answer that are reported."""


def stack_file(directory: Path, local_rank: int) -> Path:
    """The file for the stacks of a local rank, in whatever generation."""
    return directory / f"{local_rank}.stacks"


def answer(path: Path) -> None:
    """Have this process write its stacks to `path` whenever it gets `SIGNAL`."""
    faulthandler.register(SIGNAL, file=path.open("ab"), all_threads=True, chain=False)


async def collect(
    directory: Path, record: GenerationRecord, local_ranks: Mapping[int, int]
) -> list[Stack]:
    """The stacks of ranks; empty for ranks that have not written any within ANSWER_SECONDS.

    `local_ranks` maps ranks to local ranks. Call it right after the signal was ordered: the files
    hold the newest answer only.
    """
    files = {rank: stack_file(directory, local_rank) for rank, local_rank in local_ranks.items()}
    deadline, before = time.monotonic() + ANSWER_SECONDS, dict.fromkeys(files, -1)
    while time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        sizes = {rank: _size(path) for rank, path in files.items()}
        if sizes == before and all(sizes.values()):
            break
        before = sizes
    return [
        Stack(generation=record.number, rank=rank, text=_take(path)) for rank, path in files.items()
    ]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _take(path: Path) -> str:
    try:
        text = path.read_bytes()[-_LIMIT:].decode(errors="replace")
        path.write_bytes(b"")
    except OSError:
        return ""
    return text
