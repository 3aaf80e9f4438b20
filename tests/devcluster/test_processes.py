"""Long-running programs are found again, and no other processes are."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from devcluster.errors import CommandFailedError, DevclusterError
from devcluster.processes import Launch, Processes, read_proc, run
from tests.support.waiting import wait_until


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_a_program_that_runs_is_known_and_ends_when_it_is_killed(processes: Processes) -> None:
    processes.start(Launch("sleeper", ("sleep", "60")))
    pid = processes.pid("sleeper")
    assert pid is not None
    # A process has no environment yet for a moment after its exec.
    wait_until("the mark", lambda: list(processes.marked_processes()) == [pid])
    processes.kill("sleeper")
    assert processes.pid("sleeper") is None


def test_starting_what_runs_already_starts_no_second(processes: Processes) -> None:
    processes.start(Launch("sleeper", ("sleep", "60")))
    first = processes.pid("sleeper")
    processes.start(Launch("sleeper", ("sleep", "60")))
    assert processes.pid("sleeper") == first
    processes.kill("sleeper")


def test_a_program_that_ends_runs_until_its_last_thread_has_ended(processes: Processes) -> None:
    """Until then a port of it is in use."""
    exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        f"ctypes.CDLL(None).syscall({exit_thread}, 0)\n"
    )
    processes.start(Launch("two-threads", (sys.executable, "-c", program)))
    pid = processes.pid("two-threads")
    assert pid is not None
    wait_until("its first thread to end", lambda: ") Z " in read_proc(pid, "stat"))
    assert processes.pid("two-threads") == pid
    processes.kill("two-threads")
    assert processes.pid("two-threads") is None


def test_a_recycled_process_id_is_not_taken_for_ours(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other.pid").write_text("1 12345")  # process 1 began at another time
    assert processes.pid("other") is None


def test_the_error_of_a_failed_program_has_its_output() -> None:
    with pytest.raises(CommandFailedError, match=r"ended with 3: no such thing"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_the_error_of_a_missing_program_says_what_to_do() -> None:
    with pytest.raises(DevclusterError, match="devcluster build"):
        run(["/nowhere/program"])
