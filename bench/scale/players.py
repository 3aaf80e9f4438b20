"""Processes that play the agents of a job: they get commands and answer them, a JSON line each."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.recovery_settings import PYTHON_PATH
from devcluster import binaries
from devcluster.processes import cpu_seconds, run
from regroup.local.processes import dies_with
from tools.cache import cache_folder
from tools.locks import locked

SOURCES = Path(__file__).parent / "agents"
MORE_SECONDS = 60.0
"""For an answer beyond its own time limit: the machine may be busy."""


@dataclass(frozen=True)
class Answer:
    """What the players have seen. Times are seconds of the machine's monotonic clock."""

    begun: float = 0.0
    done: float | None = None
    """When the last agent arrived; None: not all did in time."""
    arrived: int = 0
    of: int = 0
    received: int = 0
    """Bytes: all that agents received."""
    lag: float = 0.0
    """Of heartbeats, from before they were sent until their answer was read: the 99th percentile in
    seconds, since the last question.
    """
    beats: int = 0
    dropped: int = 0
    """Messages that did not fit into the queues of agents."""
    step: int = 0
    generation: tuple[int, int] = (0, 0)
    """The newest that an agent has entered: its term, and its number."""

    @property
    def seconds(self) -> float | None:
        """From the begin to the last arrival."""
        return None if self.done is None else self.done - self.begun

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Read an answer."""
        found = json.loads(line)
        return cls(**{**found, "generation": tuple(found["generation"])})

    @classmethod
    def of_all(cls, answers: Sequence[Self]) -> Self:
        """What several processes have seen together."""
        found = {name: [getattr(one, name) for one in answers] for name in _SUMS}
        done = [one.done for one in answers]
        return cls(
            begun=min(one.begun for one in answers),
            done=None if None in done else max(at for at in done if at is not None),
            lag=max(one.lag for one in answers),
            step=min(one.step for one in answers),
            generation=max(one.generation for one in answers),
            **{name: sum(values) for name, values in found.items()},
        )


_SUMS = ("arrived", "of", "received", "beats", "dropped")


class Players:
    """So many processes, each with its own part of the agents. They end with this one."""

    def __init__(
        self, command: Sequence[str | Path], settings: Sequence[Mapping[str, Any]]
    ) -> None:
        self._processes = [_start(command) for _ in settings]
        for process, one in zip(self._processes, settings, strict=True):
            _write(process, one)

    def ask(self, do: str, seconds: float = 0.0, **more: int) -> Answer:
        """Have all of them do something, and return what they have seen. Raises TimeoutError or
        RuntimeError when one does not answer.
        """
        for process in self._processes:
            _write(process, {"do": do, "seconds": seconds, **more})
        return Answer.of_all([_read(process, seconds) for process in self._processes])

    def cpu_seconds(self) -> float:
        """CPU seconds of all of them."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _start(command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one prctl and one getppid
    )


def _write(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        raise _ended(process) from None


def _ended(process: subprocess.Popen[bytes]) -> RuntimeError:
    return RuntimeError(f"the simulated agents ended with {process.wait()}")


def _read(process: subprocess.Popen[bytes], seconds: float) -> Answer:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds + MORE_SECONDS)[0]:
        raise TimeoutError(f"no answer of the simulated agents within {seconds + MORE_SECONDS} s")
    line = process.stdout.readline()
    if not line:
        raise _ended(process)
    return Answer.read(line)


def agents_program(report: Callable[[str], None]) -> Path:
    """The program in `agents`, built where it is missing. Raises DevclusterError."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    target = cache_folder() / "bench" / f"scale-agents-{digest.hexdigest()[:12]}"
    with locked(target.with_suffix(".lock"), target.name, report):
        if not target.exists():
            report("building the simulated agents")
            _build(target)
    return target


def _build(target: Path) -> None:
    binaries.check_go((SOURCES / "go.mod").read_text())
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = ("go", "-C", SOURCES, "build", "-trimpath", "-buildvcs=false", "-o", made)
        run(command, environment=binaries.go_environment())
        made.rename(target)
