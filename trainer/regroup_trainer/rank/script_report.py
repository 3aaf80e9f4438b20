"""`report`: one line by which any script shows its steps, wherever it runs.

    for step, batch in enumerate(loader):
        ...
        report(step=step + 1, total=len(loader), loss=loss)

It costs a comparison and a write into shared memory; twice a second the newest step is sent. Only
then a loss that is a tensor is read, which waits for the device.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

from regroup_trainer.protocol.channel import PROGRESS_SECONDS
from regroup_trainer.protocol.rank_messages import BUSY_LIMIT, HIGHEST_STEP, Busy, ScriptStep
from regroup_trainer.rank import launch
from regroup_trainer.rank.launch import Launch


def report(
    step: SupportsIndex | None = None,
    *,
    total: SupportsIndex | None = None,
    loss: SupportsFloat | None = None,
    busy: str | None = None,
) -> None:
    """Report that `step` steps of `total` are done, or that the script is `busy` with something
    else until its next step.

    Steps count from the beginning of the whole run, not of an epoch or a process. `loss` is any
    number that `float` takes, also a tensor. Without a Regroup agent, in a process that a rank has
    started, and beside a Session (which reports by itself) it does nothing. Any thread may call it.

    Raises TypeError, which names the argument, for a value of another type. No number is an error:
    a step out of 0 .. 2**53 - 1 is taken for the nearest in it, and a loss that is not finite is
    shown as such.
    """
    if step is None and busy is None:
        raise TypeError("report: step is missing: give step=..., or busy='evaluation'")
    done = None if step is None else _whole("step", step)
    whole = None if total is None else _whole("total", total)
    if loss is not None and (isinstance(loss, bool) or not hasattr(type(loss), "__float__")):
        raise _wrong_type("loss", "a number", loss)
    if busy is not None and not isinstance(busy, str):
        raise _wrong_type("busy", "a string", busy)
    here = launch.present()
    if here is None or here.finish is not None or here.process != os.getpid():
        return
    steps = _steps_of(here)
    if done is not None:
        steps.on_step(_NewStep(done, whole or 0, _detached(loss), time.time()))
    if busy:
        steps.on_busy(_printable(busy)[:BUSY_LIMIT])


def flush() -> None:
    """Send the newest step, if it was not sent yet: the script has ended. Raises nothing."""
    for steps in _present:
        with contextlib.suppress(Exception):  # a loss that cannot be read any more
            steps.flush()


@dataclass(frozen=True)
class _NewStep:
    done: int
    total: int
    loss: Any
    time: float


class _ScriptSteps:
    """What one rank of a script reports. No caller waits for another, since one may be a signal
    handler within the other: who comes while a report is sent leaves its own to that caller.
    """

    def __init__(self, here: Launch) -> None:
        self.launch = here
        self._sending = threading.Lock()
        self._unsent: _NewStep | None = None
        self._unsent_busy = ""
        self._busy = ""
        self._busy_at = 0.0

    def on_step(self, step: _NewStep) -> None:
        self._unsent, self._unsent_busy = step, ""
        is_due = self.launch.channel.committed(step.done, step.time)
        if is_due or self._busy:
            self.flush()
        self._busy = ""

    def on_busy(self, doing: str) -> None:
        now = time.monotonic()
        if doing == self._busy and now < self._busy_at + PROGRESS_SECONDS:
            return
        self._busy, self._busy_at, self._unsent_busy = doing, now, doing
        self.flush()

    def flush(self) -> None:
        while self._unsent is not None or self._unsent_busy:
            if not self._sending.acquire(blocking=False):
                return
            try:
                self._send_unsent()
            finally:
                self._sending.release()

    def _send_unsent(self) -> None:
        step, self._unsent = self._unsent, None
        if step is not None:
            self.launch.channel.send(self._message(step))
        doing, self._unsent_busy = self._unsent_busy, ""
        if doing:
            number, rank = self.launch.assignment.record.number, self.launch.assignment.rank
            busy = Busy(generation=number, rank=rank, doing=doing, step=0, lasting=True)
            self.launch.channel.send(busy)

    def _message(self, step: _NewStep) -> ScriptStep:
        assignment = self.launch.assignment
        has_loss = step.loss is not None and assignment.rank == 0  # whose loss is shown
        return ScriptStep(
            generation=assignment.record.number,
            rank=assignment.rank,
            step=step.done,
            total=step.total,
            loss=_finite(step.loss) if has_loss else None,
            has_loss=has_loss,
            time=step.time,
        )


_present: list[_ScriptSteps] = []


def _steps_of(here: Launch) -> _ScriptSteps:
    if not _present or _present[0].launch is not here:
        _present[:] = [_ScriptSteps(here)]
    return _present[0]


def _whole(name: str, value: SupportsIndex) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise _wrong_type(name, "a whole number", value)
    try:
        return min(max(0, operator.index(value)), HIGHEST_STEP)
    except Exception as error:  # a tensor without a value raises what it likes
        raise _wrong_type(name, "a whole number", value) from error


def _printable(text: str) -> str:
    """The text without the halves of characters that no file or message can hold."""
    return text.encode(errors="backslashreplace").decode()


def _wrong_type(name: str, wanted: str, value: object) -> TypeError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
    return TypeError(f"report: {name} must be {wanted}, got {shown} ({type(value).__name__})")


def _detached(loss: Any) -> Any:
    """The loss without the graph that a tensor would keep in memory."""
    return loss.detach() if hasattr(loss, "detach") else loss


def _finite(loss: Any) -> float | None:
    """The value of a loss; None when it is not finite."""
    try:
        value = float(loss)
    except OverflowError:
        return None
    except Exception as error:
        raise _wrong_type("loss", "one number", loss) from error
    return value if abs(value) < float("inf") else None
