"""Signals that arrive while a process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal
from regroup_trainer.system.last_signals import ignore_signals

NUMBERS = (signal.SIGINT, signal.SIGTERM)

async def work():
    for number in NUMBERS:
        asyncio.get_running_loop().add_signal_handler(number, print, "handled")
    {last_line}

asyncio.run(work())
for number in NUMBERS:
    os.kill(os.getpid(), number)
print("ended in order")
"""


@pytest.mark.parametrize("ignores", [True, False])
def test_a_process_that_ignores_its_last_signals_ends_in_order(ignores: bool) -> None:
    last_line = "ignore_signals(*NUMBERS)" if ignores else "pass"
    program = PROGRAM.format(last_line=last_line)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode == 0) == ignores
    assert ("ended in order" in done.stdout) == ignores
    assert bool(done.stderr) != ignores
