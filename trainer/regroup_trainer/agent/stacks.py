"""The stacks of ranks: each writes those of its threads into a file when it gets a signal.

Faulthandler answers the signal from C. So a rank that is blocked in a collective, or in the user's
code, answers too. A rank that is frozen, or hangs in the kernel, does not. Torch-free.

`python -m regroup_trainer.agent.stacks` asks the agent of its pod for them, and prints them as JSON
(`WorkerStacks`). `kubectl trainingjob debug` runs it in each worker pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.agent_messages import RankStack, Stack
from regroup_trainer.protocol.environment import AgentEnvironment, read_token
from regroup_trainer.protocol.generation import GenerationRecord

SIGNAL = signal.SIGRTMAX  # programs use SIGUSR1 and SIGUSR2 themselves
ANSWER_SECONDS = 1.0
PATH = "/v1/stacks"
"""Where the endpoint of an agent shows them to whoever has the job's token."""
_ASK_SECONDS = 5.0
"""How long a busy agent may take: it may be asking its ranks for its coordinator just now."""
_POLL_SECONDS = 0.05
_LIMIT = 16000
"""Bytes of a rank's answer that are reported."""
_STATES = {
    "T": "is stopped (by SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a volume or a device, and nothing can interrupt it",
    "Z": "has ended",
    "": "has ended",
}
"""State of a process that answers no signal -> what it does, to be read after its name."""


def stack_file(directory: Path, local_rank: int) -> Path:
    """The file for the stacks of a local rank, in whatever generation."""
    return directory / f"{local_rank}.stacks"


def answer(path: Path) -> None:
    """Have this process write its stacks to `path` whenever it gets `SIGNAL`."""
    faulthandler.register(SIGNAL, file=path.open("ab"), all_threads=True, chain=False)


def answers(pid: int) -> bool:
    """Whether a process has called `answer`. The signal would end any other one: a rank that has
    just been forked, or has become another program.
    """
    caught = _process_status(pid).get("SigCgt", "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


async def collect(
    order: Callable[[], None],
    directory: Path,
    record: GenerationRecord,
    local_ranks: Mapping[int, int],
) -> list[Stack]:
    """The stacks of ranks; empty for ranks that have not written any within ANSWER_SECONDS.

    `order` has them sent the signal. `local_ranks` maps ranks to local ranks.
    """
    files = {rank: stack_file(directory, local_rank) for rank, local_rank in local_ranks.items()}
    for path in files.values():
        _take(path)  # what came too late for whoever asked before
    order()
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


def describe(stack: Stack, pid: int | None) -> RankStack:
    """A stack, or why there is none. `pid`: the process of the rank."""
    missing = "" if stack.text else _why_missing(pid)
    return RankStack(rank=stack.rank, text=stack.text, missing=missing)


def _why_missing(pid: int | None) -> str:
    if pid is None:
        return "shows no stack: it has just started"
    if (state := _process_status(pid).get("State", "")[:1]) in _STATES:
        return _STATES[state]
    if not answers(pid):
        return "shows no stack: it has just started, or has become another program"
    return f"has not answered within {ANSWER_SECONDS:.0f} s (short of CPU time?)"


def _process_status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty for a process that is gone."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _take(path: Path) -> str:
    try:
        text = path.read_bytes()[-_LIMIT:].decode(errors="replace")
        path.write_bytes(b"")
    except OSError:
        return ""
    return text


def main() -> int:
    """Print what the ranks of this pod do; returns the exit code."""
    try:
        environment = AgentEnvironment.read(dict(os.environ))
        token = read_token(environment.token_file)
        print(_ask(environment.address, environment.metrics_port, token))
    except (ConfigurationError, OSError, http.client.HTTPException) as error:
        print(f"the agent of this pod shows no stacks: {error}", file=sys.stderr)
        return 1
    return 0


def _ask(host: str, port: int, token: str) -> str:
    """What the agent answers. Raises OSError, http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=_ASK_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", PATH, headers={"Authorization": f"Bearer {token}"})
        found = connection.getresponse()
        text = found.read().decode()
    if found.status != http.client.OK:
        raise http.client.HTTPException(f"HTTP status {found.status}: {text}")
    return text


if __name__ == "__main__":
    sys.exit(main())
