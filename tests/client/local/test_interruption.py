"""Signals to a local run."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from regroup.local import interruption
from regroup.local.interruption import RunAbandonedError, until_the_end
from tests.support.waiting import until


class StuckRun:
    """A run whose volume does not take the save."""

    suspensions = 0
    was_cleaned = False

    async def run(self) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cleaned = True
        return "completed"

    def suspend(self) -> None:
        self.suspensions += 1


@pytest.fixture(autouse=True)
def _signals() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_a_second_signal_ends_a_run_that_cannot_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "AGAIN_SECONDS", 0.0)
    run, notes = StuckRun(), list[str]()
    ending = asyncio.ensure_future(until_the_end(run, notes.append, "saving, then stopping"))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await until("the suspension", lambda: run.suspensions == 1)
    assert notes == ["saving, then stopping; again: stop at once"]
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(RunAbandonedError, match="before all was saved"):
        await ending
    assert run.was_cleaned


async def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    run, notes = StuckRun(), list[str]()
    ending = asyncio.ensure_future(until_the_end(run, notes.append, "stopping"))
    await asyncio.sleep(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    await until("the suspension", lambda: run.suspensions == 1)
    assert not ending.done()
    ending.cancel()
    with pytest.raises(RunAbandonedError):
        await ending
    assert len(notes) == run.suspensions == 1
