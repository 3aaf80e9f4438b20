"""Signals that arrive while a process starts or ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regroup_trainer.protocol.exit_codes import TERMINATED

PROGRAM = """
import asyncio, os, signal
from regroup_trainer.system.process_signals import ignore_signals

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


def test_a_process_that_ends_at_once_has_written_all_and_frees_nothing() -> None:
    program = """
import atexit
from regroup_trainer.system.process_signals import end_at_once
atexit.register(print, "the end of the interpreter")
print("written")
end_at_once(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "written\n", "")


SLOW_IMPORT = """
import time
print("importing", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("regroup_trainer.agent", "aiohttp"),
        ("regroup_trainer.coordinator", "aiohttp"),
        ("regroup_operator", "kopf"),
    ],
)
def test_sigterm_ends_a_process_that_still_imports(
    module: str, imported: str, tmp_path: Path
) -> None:
    (tmp_path / f"{imported}.py").write_text(SLOW_IMPORT)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        env={"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.terminate()
        # 143 is the handler's. Without a handler, it would be -15, and PID 1 would live on.
        assert process.wait(timeout=30) == TERMINATED
