"""A rank under stock torchrun: what it writes, and how it ends. Run as torchrun runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from regroup_trainer.agent import torchrun_rank
from regroup_trainer.agent.torchrun_rank import failure, place_in
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.protocol.torchrun_programs import (
    MESSAGE_VARIABLE,
    PROGRAM_VARIABLE,
    RUN_RANK,
    rank_program,
)
from regroup_trainer.system.rendezvous_check import RankPlace

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
PROBE, OTHER_WORK = PROGRAMS / "probe.py", PROGRAMS / "other_work.py"


def start(
    folder: Path, text: str | Path, *arguments: str, **variables: str
) -> subprocess.Popen[str]:
    """Start rank 3, the only one of its worker, with a script of this text."""
    script = text if isinstance(text, Path) else folder / "script.py"
    if isinstance(text, str):
        script.write_text(text)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        "RANK": "3",
        "LOCAL_RANK": "0",
        PROGRAM_VARIABLE: rank_program(),
        MESSAGE_VARIABLE: str(folder / "message"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-u", RUN_RANK, str(script), *arguments],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_every_line_of_the_script_begins_with_its_rank(tmp_path: Path) -> None:
    (tmp_path / "select.py").write_text("raise ImportError('a module of the program')")
    text = "import os, sys\nprint('one\\ntwo')\nprint('three', end='', file=sys.stderr)"
    out, error = start(tmp_path, text).communicate(timeout=60)
    assert out == "rank 3: one\nrank 3: two\n"
    assert error == "rank 3: three\n"


def test_the_folder_of_the_job_is_there_when_the_script_begins(tmp_path: Path) -> None:
    folder = tmp_path / "volume/job"
    text = f"open({str(folder / 'snapshot')!r}, 'w').close()"
    rank = start(tmp_path, text, **{DIRECTORY_VARIABLE: str(folder)})
    rank.communicate(timeout=60)
    assert (folder / "snapshot").exists()


def test_a_volume_that_does_not_answer_keeps_no_script_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(torchrun_rank, "_DIRECTORY_SECONDS", 0.01)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: answers.wait())
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "job"))
    made = threading.Thread(target=torchrun_rank._make_directory, daemon=True)
    made.start()
    made.join(30)
    hangs = made.is_alive()
    answers.set()
    assert not hangs


@pytest.mark.parametrize("end", ["os.abort", "os._exit, 3", "os.kill, os.getpid(), 11"])
def test_a_script_that_aborts_after_its_last_line_has_ended_well(tmp_path: Path, end: str) -> None:
    rank = start(tmp_path, f"import atexit, os\natexit.register({end})\nprint('done')")
    out, error = rank.communicate(timeout=60)
    assert (rank.returncode, out) == (0, "rank 3: done\n")
    assert "after the script's last line: its work counts" in error
    assert not (tmp_path / "message").exists()


ENDS_IN_A_THREAD = """
import threading, time
end = lambda: (time.sleep(0.5), os.kill(os.getpid(), 9))
threading.Thread(target=end).start()
"""


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("raise ValueError('a bug')", 1),
        # a helper that it has forked ended well
        ("os.fork() or sys.exit(0)\nos.wait()\nsys.exit(5)", 5),
        (ENDS_IN_A_THREAD, -signal.SIGKILL),
    ],
)
def test_a_script_that_ends_before_its_last_line_has_failed(
    tmp_path: Path, last: str, code: int
) -> None:
    rank = start(tmp_path, f"import os, sys\n{last}\nprint('done')")
    rank.communicate(timeout=60)
    assert rank.returncode == code
    assert (tmp_path / "message").read_text().startswith("rank 3 ")


def test_the_last_message_has_the_traceback_without_frames_of_ours(tmp_path: Path) -> None:
    (tmp_path / "message").write_text("an earlier failure")
    rank = start(tmp_path, "def train():\n    raise ValueError('a bug')\ntrain()\n")
    rank.communicate(timeout=60)
    first, *trace = (tmp_path / "message").read_text().splitlines()
    assert first == "rank 3 failed with exit code 1:"
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: a bug"
    assert [line for line in trace if "File" in line and "script.py" not in line] == []


def test_a_failure_says_when_torchrun_gives_up() -> None:
    environment = {"RANK": "1", "TORCHELASTIC_RESTART_COUNT": "4", "TORCHELASTIC_MAX_RESTARTS": "4"}
    assert failure(-9, environment) == (
        "rank 1 was ended by SIGKILL; torchrun gives up after 4 restarts"
    )
    assert failure(7, {**environment, "TORCHELASTIC_RESTART_COUNT": "3"}) == (
        "rank 1 failed with exit code 7"
    )


@pytest.mark.parametrize(("local_size", "is_advised"), [("1", True), ("2", False)])
def test_two_ranks_that_want_one_address_learn_what_to_change(
    tmp_path: Path, local_size: str, is_advised: bool
) -> None:
    error = "The server socket has failed to listen on any local network address. port: 29517"
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": local_size}
    start(tmp_path, f"raise RuntimeError('{error}')", **sizes).communicate(timeout=60)
    first = (tmp_path / "message").read_text().splitlines()[0]
    assert ("takes LOCAL_RANK for its rank" in first) == is_advised


def test_the_signal_to_the_group_is_the_scripts_to_handle(tmp_path: Path) -> None:
    text = """
import signal, sys
def save(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
signal.pause()
"""
    rank = start(tmp_path, text)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "rank 3: ready\n"
    os.killpg(rank.pid, signal.SIGTERM)
    assert rank.communicate(timeout=60)[0] == "rank 3: saved\n"
    assert rank.returncode == 0


INTERRUPTED = "class Interrupted(SystemExit):\n    pass\nraise Interrupted"


@pytest.mark.parametrize("end", ["sys.exit(143)", "os.kill(os.getpid(), 15)", INTERRUPTED])
def test_a_script_that_was_asked_to_end_leaves_no_failure(tmp_path: Path, end: str) -> None:
    rank = start(tmp_path, f"import os, sys\n{end}")
    rank.communicate(timeout=60)
    assert rank.returncode in (143, -signal.SIGTERM)
    assert not (tmp_path / "message").exists()


ADOPTS = """
import ctypes, os, pathlib, signal, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); input()"
torchrun = subprocess.Popen([sys.executable, "-c", start, *sys.argv[1:]], stdin=subprocess.PIPE)
while not pathlib.Path("runs").exists():
    pass
torchrun.kill()
torchrun.wait()
_, status = os.wait()
print("the rank ended with code", os.waitstatus_to_exitcode(status))
"""
RUNS_ON = """
import pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("runs").touch()
while True:
    signal.pause()
"""


def test_a_rank_ends_when_its_torchrun_was_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RUNS_ON)
    done = subprocess.run(
        [sys.executable, "-c", ADOPTS, sys.executable, "-u", RUN_RANK, "script.py"],
        env={
            **os.environ,
            "LOCAL_RANK": "0",
            PROGRAM_VARIABLE: rank_program(),
            MESSAGE_VARIABLE: str(tmp_path / "message"),
        },
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
        text=True,
    )
    assert done.stdout == "the rank ended with code -9\n"
    assert not (tmp_path / "message").exists()


def test_a_script_that_is_not_there_is_reported(tmp_path: Path) -> None:
    rank = start(tmp_path, tmp_path / "nowhere.py")
    assert "nowhere.py is no file on this worker" in rank.communicate(timeout=60)[1]
    assert rank.returncode == 2


@pytest.mark.long
@pytest.mark.slow
def test_the_process_is_the_one_that_python_would_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = []
    for name in ("plain", "rank"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "plain":
            subprocess.run([sys.executable, "-u", PROBE, folder], check=True, timeout=100)
        else:
            out, error = start(folder, PROBE, str(folder)).communicate(timeout=100)
            assert "rank 3: by atexit" in out, error
        found.append(json.loads((folder / "found.json").read_text()))
    for each in found:
        assert each.pop("argv")[0] == str(PROBE)
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.slow
def test_processes_that_a_script_starts_for_other_work_are_left_alone(tmp_path: Path) -> None:
    sizes = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "4"}
    there = {"MASTER_ADDR": "198.18.0.7", "MASTER_PORT": "29500"}
    out, error = start(tmp_path, OTHER_WORK, **sizes, **there).communicate(timeout=200)
    assert out.splitlines() == ["rank 3: the helpers have ended with 0"], error


def test_workers_at_one_address_of_their_own_are_one_host() -> None:
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    there = {**given, "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "198.18.0.7"}
    assert place_in(there) == RankPlace(3, 4, 1, 2, hosts=2)
    assert place_in({**there, "MASTER_ADDR": "127.0.0.1"}).hosts == 1


def test_nothing_is_written_where_the_script_has_opened_something_else(tmp_path: Path) -> None:
    text = """
import os
os.closerange(3, 64)
files = [open(f"mine-{number}", "wb") for number in range(12)]
"""
    rank = start(tmp_path, text)
    rank.communicate(timeout=60)
    assert rank.returncode == 0
    assert {path.read_bytes() for path in tmp_path.glob("mine-*")} == {b""}
