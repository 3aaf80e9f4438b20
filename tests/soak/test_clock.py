"""The wall clock of a pod's processes in a soak."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soak import clock

LOOK = """
import ctypes, time
def wait_by_the_wall_clock():
    mutex, condition = (ctypes.create_string_buffer(48) for _ in range(2))
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    until = (ctypes.c_long * 2)(int(time.time()) + 1, 0)
    libc.pthread_cond_timedwait(condition, mutex, until)
began = time.monotonic()
wait_by_the_wall_clock()
print(time.time(), time.monotonic(), time.monotonic() - began)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="may install a compiler")
@pytest.mark.parametrize("ahead", [420, -420, 0])
def test_the_wall_clock_alone_is_off_and_waits_by_it_are_as_long(
    tmp_path: Path, ahead: int
) -> None:
    clock.compiled(tmp_path)
    (tmp_path / "ahead").write_text(f"{ahead}\n")
    shown = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **clock.variables(str(tmp_path), str(tmp_path / "ahead"))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    wall, monotonic, waited = map(float, shown.stdout.split())
    assert wall - ahead == pytest.approx(time.time(), abs=30)
    assert monotonic == pytest.approx(time.monotonic(), abs=30)
    assert waited < 30
