"""Writes the history of one generation, beside its training. Torch-free.

A thread does all that needs the volume. While the volume is full or does not answer, lines wait in
memory and training goes on. When too many wait, the oldest ones are dropped, and the file of gaps
gets one line that says which.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.history import CommittedStep, Gap, last_step
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.checkpoint.volume_calls import VolumeHealth
from regroup_trainer.errors import CheckpointError
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import VolumeProblem
from regroup_trainer.system import durable

T = TypeVar("T")
LINES_WAITING = 20_000
"""The most lines that wait, some 5 MB. As many may be part of a write that hangs."""
FLUSH_SECONDS = 1.0
"""Longest time between a line and its flush to the device, while the volume answers."""
_UNKNOWN_END = sys.maxsize
"""Of a file that was not opened yet."""


class _Line(NamedTuple):
    step: int
    content: bytes


class Beginning(NamedTuple):
    """What a generation knows of the steps before its own."""

    step: int
    """The step that it resumed from."""
    lines: tuple[CommittedStep, ...] = ()
    """The newest steps up to that one, oldest first; the volume may lack some."""


class History:
    """The history of `generation`, written by its rank 0. End it by `close`.

    Nothing here waits for the volume, except `sync`. The generation has begun on the volume.
    """

    def __init__(self, layout: Layout, generation: GenerationNumber, beginning: Beginning) -> None:
        self._layout = layout
        self._generation = generation
        self._beginning = beginning
        self._path = layout.history_file(generation)
        self._health = VolumeHealth(self._path)
        self._news = threading.Condition()
        self._lines: deque[_Line] = deque()
        """What no write has taken yet."""
        self._gap: Gap | None = None
        self._appended = self._written = self._flushed = self._wanted = 0
        """Counts of lines: appended; written, or dropped; flushed; that somebody wants flushed."""
        self._written_step = 0
        self._descriptor = -1
        self._end = _UNKNOWN_END
        """Bytes of the file that are known to be on the device."""
        self._unflushed = b""
        """What was written after them."""
        self._is_doubtful = False
        """Whether a flush has failed since, or the file was opened anew."""
        self._flushed_at = 0.0
        self._failures = 0
        self._error: OSError | None = None
        self._closing = threading.Event()
        self._has_ended = False
        """Whether the thread writes no more."""
        self.flushed_step = 0
        """The newest step that is known to be on the device; 0: none is known yet."""
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def append(self, step: CommittedStep) -> None:
        """Append a committed step. It outlives the machine soon after, if the volume answers."""
        with self._news:
            self._lines.append(_line(step))
            self._appended += 1
            if len(self._lines) > LINES_WAITING:
                self._drop(self._lines.popleft().step)
            self._news.notify_all()

    def sync(self) -> None:
        """Flush what was appended so far, in a thread that may wait. Raises OSError when an attempt
        fails.
        """
        with self._news:
            target, failures = self._appended, self._failures
            self._wanted = max(self._wanted, target)
            self._news.notify_all()
            self._news.wait_for(
                lambda: self._flushed >= target or self._failures > failures or self._has_ended
            )
            if self._flushed < target:
                raise self._error or OSError(f"{self._path} was closed before")

    def problem(self) -> VolumeProblem | None:
        """What keeps lines from the volume, if anything does."""
        waiting = self._appended - self._flushed
        risk = f"{waiting} steps of the history wait in memory; of more than {LINES_WAITING} the "
        return self._health.problem(risk + "oldest are left out. Checkpoints may fail too.")

    def close(self, seconds: float) -> None:
        """Write what waits, and end. Waits at most so long; after a failed attempt nothing more is
        tried.
        """
        self._closing.set()
        with self._news:
            self._news.notify_all()
        self._thread.join(seconds)

    def _drop(self, step: int) -> None:
        gap = self._gap or Gap(first=step, last=step)
        self._gap = Gap(first=min(gap.first, step), last=max(gap.last, step))

    def _run(self) -> None:
        try:
            self._insist_on_file(os.fstat)
            self._insist(self._continue)
            while self._wait_for_work():
                self._write()
                if self._flush_is_due():
                    self._flush()
        except OSError:
            return  # closed while the volume refuses: the next generation repeats these lines
        finally:
            self._close_file()
            with self._news:
                self._has_ended = True
                self._news.notify_all()

    def _insist(self, action: Callable[[], T]) -> T:
        return self._health.insist(action, self._note_failure, self._closing)

    def _note_failure(self, error: OSError) -> bool:
        with self._news:
            self._error, self._failures = error, self._failures + 1
            self._news.notify_all()
        return self._closing.is_set()

    def _insist_on_file(self, action: Callable[[int], T]) -> T:
        """The result of `action` on the open file. After an error the file is opened anew by its
        path: where a server or a FUSE process has restarted, a descriptor stays stale for ever.
        """
        return self._insist(partial(self._try_on_file, action))

    def _try_on_file(self, action: Callable[[int], T]) -> T:
        try:
            if self._descriptor < 0:
                self._open_file()
            return action(self._descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                self._descriptor = -1  # by now the number may be of another file
            self._close_file()
            raise

    def _open_file(self) -> None:
        """Of a file that is opened anew, what was written after the last flush may be lost."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._descriptor).st_size
        self._is_doubtful = self._end != _UNKNOWN_END
        self._end = min(self._end, size)

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _continue(self) -> None:
        """Queue the earlier lines that the volume lacks."""
        written = _last_written(self._layout, self._generation)
        step, lines = self._beginning
        missing = [line for line in lines if line.step > written]
        first = missing[0].step if missing else step + 1
        with self._news:
            self._lines.extendleft(map(_line, reversed(missing)))
            self._appended += len(missing)
            if first > written + 1:
                last = self._gap.last if self._gap else first - 1
                self._gap = Gap(first=written + 1, last=last)

    def _wait_for_work(self) -> bool:
        """Return when there is something to do; False when the history is closed and flushed."""
        with self._news:
            if self._written > self._flushed:
                self._news.wait_for(self._has_work, FLUSH_SECONDS)
            else:
                self._news.wait_for(self._has_work)
            return not self._closing.is_set() or self._flushed < self._appended

    def _has_work(self) -> bool:
        return bool(self._lines) or self._wanted > self._flushed or self._closing.is_set()

    def _write(self) -> None:
        with self._news:
            lines, gap, taken = tuple(self._lines), self._gap, self._appended
            self._lines.clear()
            self._gap = None
        if gap is not None:
            path = self._layout.history_gaps(self._generation)
            self._insist(lambda: durable.append(path, gap.model_dump_json() + "\n"))
        content = rest = b"".join(line.content for line in lines)
        while rest:
            rest = rest[self._insist_on_file(partial(_write_to, rest)) :]
        self._unflushed += content
        self._written = taken
        self._written_step = lines[-1].step if lines else self._written_step

    def _flush_is_due(self) -> bool:
        wanted = self._wanted > self._flushed or self._closing.is_set()
        return wanted or time.monotonic() >= self._flushed_at + FLUSH_SECONDS

    def _flush(self) -> None:
        self._insist_on_file(self._sync)
        self._end, self._unflushed = self._end + len(self._unflushed), b""
        self._flushed_at = time.monotonic()
        with self._news:
            self._flushed, self.flushed_step = self._written, self._written_step
            self._news.notify_all()

    def _sync(self, descriptor: int) -> None:
        """Flush. After an error everything since the last flush is written anew: the kernel reports
        pages that it cannot write once, and then forgets them.
        """
        if self._is_doubtful:
            os.ftruncate(descriptor, self._end)
            rest = self._unflushed
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        self._is_doubtful = True
        os.fsync(descriptor)
        self._is_doubtful = False


def _write_to(content: bytes, descriptor: int) -> int:
    return os.write(descriptor, content)


def _line(step: CommittedStep) -> _Line:
    return _Line(step.step, step.model_dump_json().encode() + b"\n")


def _last_written(layout: Layout, generation: GenerationNumber) -> int:
    """The newest step before this generation that is in the history. Raises OSError."""
    try:
        return last_step(layout, lineage.ending_with(layout, generation)[:-1])
    except CheckpointError as error:
        raise OSError(errno.EIO, str(error)) from error
