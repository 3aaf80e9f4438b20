"""A slow volume is slow to the end, or says that it was not."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from soak.volume import Slowness, SoakVolume
from tests.support.waiting import wait_until


def test_a_server_that_dies_under_a_slow_volume_is_an_error() -> None:
    server = subprocess.Popen(["sleep", "600"])
    nowhere = Path(os.devnull)
    slow = Slowness(SoakVolume("v", nowhere, nowhere, nowhere, server.pid))
    server.kill()
    assert server.wait() == -signal.SIGKILL
    wait_until("the end of its thread", lambda: not slow._thread.is_alive())
    with pytest.raises(RuntimeError, match="not slow to the end: ProcessLookupError"):
        slow.end()
