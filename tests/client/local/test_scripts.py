"""A program runs as `python program.py` would run it, and what it writes is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from tests.support.local_job import make_run, play

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
PROBE = PROGRAMS / "probe.py"
WAYS = (
    "by print: ü",
    "by the buffer",
    "by the descriptor",
    "by C",
    "by a subprocess",
    "by logging",
    "by a thread",
    "by atexit",
    "without an end",
)


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, object]:
    """What the probe finds under `python probe.py`."""
    folder = tmp_path / "plain"
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    subprocess.run(
        [sys.executable, PROBE, folder],
        env=environment,
        check=True,
        timeout=200,
        # A shell lets the jobs in its background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    found: dict[str, object] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.timeout(300)
def test_a_program_finds_the_process_that_python_would_give_it(
    tmp_path: Path, plain: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run = make_run(
        tmp_path / "job", 1, script=(str(PROBE), str(tmp_path)), replicas=1, min_replicas=1
    )
    seen: list[str] = []
    run.on_line = seen.append
    outcome = play(run)
    log = (tmp_path / "job/logs/test-w0-0.log").read_text()
    assert outcome.result == "completed", log
    found = json.loads((tmp_path / "found.json").read_text())
    argv = plain.pop("argv")
    assert found.pop("argv") == [str(PROBE), str(tmp_path)]
    assert argv == [str(PROBE), str(tmp_path / "plain")]
    assert found == plain
    shown = [line.removeprefix("rank 0: ") for line in seen]
    assert [way for way in WAYS if way not in shown] == []
    assert any("by tqdm: 100%" in line for line in shown)


ELSEWHERE = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
"""Variables whose values name where and when a rank runs."""
DIFFERENT = {
    "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 of the program hosts its store
    "TORCHELASTIC_MAX_RESTARTS": "10",  # spec.restartPolicy.maxRestarts
}
"""Intended differences -> the value under launcher regroup."""
ONLY_TORCHRUN = {
    "TORCHELASTIC_ERROR_FILE",  # the end of standard error is reported instead
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # for torchrun's own agent
}
OF_READLINE = {"COLUMNS", "LINES"}
"""Set by readline, which torchrun's agent imports, where there is a terminal."""
ONLY_REGROUP = {"GLOO_SOCKET_IFNAME"}  # pods cannot resolve each other's names


@pytest.mark.timeout(300)
def test_a_program_finds_the_variables_that_torchrun_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    folders = {name: tmp_path / name for name in ("torchrun", "regroup")}
    for folder in folders.values():
        folder.mkdir()
    program = PROGRAMS / "environment.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", program, folders["torchrun"]], check=True, timeout=200
    )
    script = (str(program), str(folders["regroup"]))
    run = make_run(tmp_path / "job", 1, script=script, replicas=1, min_replicas=1)
    run.ranks = 2
    assert play(run).result == "completed"
    for rank in range(2):
        stock, ours = (
            {
                name: value
                for name, value in json.loads((folder / f"{rank}.json").read_text()).items()
                if os.environ.get(name) != value and not name.startswith("REGROUP_")
            }
            for folder in folders.values()
        )
        assert set(stock) - set(ours) - OF_READLINE == ONLY_TORCHRUN
        assert set(ours) - set(stock) == ONLY_REGROUP
        different = {n for n in stock.keys() & ours.keys() - ELSEWHERE if stock[n] != ours[n]}
        assert {name: ours[name] for name in different} == DIFFERENT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "init_process_group got rank 0, which is LOCAL_RANK"),
        (("spawn",), "torch.multiprocessing.spawn starts ranks, which the job does here"),
    ],
)
def test_a_program_whose_ranks_would_wait_in_vain_fails_with_what_to_change(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    script = (str(PROGRAMS / "first_ddp.py"), *arguments)
    outcome = play(make_run(tmp_path, 1, script=script, replicas=2))
    assert outcome.result == "failed"
    assert words in outcome.message


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(method, marks=pytest.mark.long) for method in ("spawn", "forkserver"))],
)
def test_ranks_that_a_script_starts_itself_end_the_job_with_what_to_change(
    tmp_path: Path, method: str
) -> None:
    script = (str(PROGRAMS / "own_ranks.py"), method)
    outcome = play(make_run(tmp_path, 1, script=script, replicas=2))
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert "in a process that the script has started: the job starts the ranks" in outcome.message


@pytest.mark.long
@pytest.mark.slow
def test_processes_that_a_script_starts_for_other_work_are_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, script=(str(PROGRAMS / "other_work.py"),), replicas=2)
    seen: list[str] = []
    run.on_line = seen.append
    assert play(run).result == "completed", seen
    assert sorted(seen) == [f"rank {rank}: the helpers have ended with 0" for rank in range(2)]


def test_a_program_that_cannot_start_fails_at_once_with_its_traceback(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import a_module_that_is_nowhere\n")
    run = make_run(tmp_path / "job", 1, script=(str(program),), replicas=2)
    outcome = play(run)
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert "No module named 'a_module_that_is_nowhere'" in outcome.message
    assert f'File "{program}", line 1' in outcome.message
    assert "regroup_trainer" not in outcome.message
    assert run.status is not None
    assert run.status.ledger.restarts == {"application": 1}


def test_a_new_coordinator_goes_on_counting_the_tries_of_a_program_that_cannot_start(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text("{}['MODEL_SIZE']\n")
    run = make_run(tmp_path / "job", 1, script=(str(program),), replicas=2, max_restarts=6)
    failed_once = lambda status: status.ledger.restarts.get("application", 0) > 0  # noqa: E731
    outcome = play(run, [(failed_once, lambda run: run.kill_coordinator())])
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert "3 tries in a row ended with this error before the first step" in outcome.message


def test_a_process_that_a_rank_has_forked_does_not_end_for_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nos.fork() or sys.exit(0)\nos.wait()\nsys.exit(5)\n")
    outcome = play(
        make_run(tmp_path / "job", 1, script=(str(program),), replicas=1, min_replicas=1)
    )
    assert outcome.result == "failed"
    assert "exit code 5" in outcome.message


INIT = "import os, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
LOCAL = """
there, store = 'file://' + os.path.abspath('meet'), dist.FileStore('store', 2)
rank = int(os.environ['LOCAL_RANK'])
"""
NEVER_MEET = {
    "another host": (
        "os.environ['MASTER_ADDR'] = '203.0.113.7'\ndist.init_process_group('gloo')",
        "203.0.113.7 is not its machine: leave MASTER_ADDR and MASTER_PORT as they are set",
    ),
    "a port each": (
        "os.environ['MASTER_PORT'] = str(29517 + rank)\ndist.init_process_group('gloo')",
        "rank 1 meets the others at port 29518, and rank 0 at 29517",
    ),
    "a file and LOCAL_RANK": (
        f"{LOCAL}dist.init_process_group('gloo', there, rank=rank, world_size=2)",
        "init_process_group got rank 0, which is LOCAL_RANK",
    ),
    "a store and LOCAL_RANK": (
        f"{LOCAL}dist.init_process_group(store=store, rank=rank, world_size=2)",
        "init_process_group got rank 0, which is LOCAL_RANK",
    ),
}


@pytest.mark.parametrize("mistake", NEVER_MEET)
def test_ranks_that_would_never_meet_fail_with_what_to_change(tmp_path: Path, mistake: str) -> None:
    program = tmp_path / "program.py"
    lines, words = NEVER_MEET[mistake]
    program.write_text(INIT + lines)
    run = make_run(tmp_path / "job", 1, script=(str(program),), replicas=2)
    run.working_directory = tmp_path
    outcome = play(run)
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert words in outcome.message


@pytest.mark.parametrize(
    "end",
    ["os._exit(0)", "os.execv('/bin/sh', ['sh', '-c', 'exit 0'])", "sys.exit(256)"],
)
def test_a_process_that_ends_with_status_0_has_ended_well(tmp_path: Path, end: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys\n{end}\n")
    script = (str(program),)
    outcome = play(make_run(tmp_path / "job", 1, script=script, replicas=1, min_replicas=1))
    assert outcome.result == "completed", outcome.message


@pytest.mark.parametrize(
    "stream", ["None", "type('Tee', (), {'flush': lambda self: {}['file']})()"]
)
def test_the_error_of_a_program_that_has_replaced_its_output_is_its_own(
    tmp_path: Path, stream: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.stdout = {stream}\nraise ValueError('no data')\n")
    script = (str(program),)
    outcome = play(
        make_run(tmp_path / "job", 1, script=script, replicas=1, min_replicas=1, max_restarts=0)
    )
    assert outcome.message.endswith("ValueError: no data")
    assert outcome.message.count("Traceback") == 1


def test_all_that_a_rank_wrote_before_its_end_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('\\n'.join(f'{number} ' + 'x' * 490 for number in range(60_000)))\n")
    run = make_run(tmp_path / "job", 1, script=(str(program),), replicas=1, min_replicas=1)
    seen: list[str] = []
    run.on_line = seen.append
    assert play(run).result == "completed"
    assert [line.split()[2] for line in seen] == [str(number) for number in range(60_000)]


def test_a_programs_own_lost_connection_is_its_error_and_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise RuntimeError('the server said: Connection closed by peer')\n")
    run = make_run(tmp_path / "job", 1, script=(str(program),), replicas=2, max_restarts=0)
    seen: list[str] = []
    run.on_line = seen.append
    outcome = play(run)
    assert outcome.result == "failed"
    assert f'File "{program}", line 1' in outcome.message
    assert any(line.endswith(f'File "{program}", line 1, in <module>') for line in seen)
    assert run.status is not None
    assert run.status.ledger.restarts == {"application": 1}


IS_ASKED_TO_END = """
import os, pathlib, signal, sys
starts = pathlib.Path(sys.argv[1], "starts")
starts.write_text(starts.read_text() + "." if starts.exists() else ".")
asked = {".": signal.SIGTERM, "..": signal.SIGINT}.get(starts.read_text())
if asked:
    os.kill(os.getpid(), asked)
    signal.pause()
"""


def test_a_script_that_gets_a_signal_from_outside_is_preempted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IS_ASKED_TO_END)
    script = (str(program), str(tmp_path))
    run = make_run(tmp_path / "job", 1, script=script, replicas=1, min_replicas=1, max_restarts=0)
    outcome = play(run)
    assert outcome.result == "completed", outcome.message
    assert run.status is not None
    assert run.status.ledger.restarts == {"preemption": 2}


TAKES_THE_PORT = """
import os, pathlib, socket, sys
import torch.distributed as dist
once = pathlib.Path(sys.argv[1], "once")
if os.environ["RANK"] == "0" and not once.exists():
    once.touch()
    there = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    ready, is_ready = os.pipe()
    if not os.fork():
        server = socket.create_server(there)
        os.write(is_ready, b".")
        os.read(os.open(sys.argv[1] + "/end", os.O_RDONLY), 1)
        os._exit(0)
    os.read(ready, 1)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_lost_race_for_the_port_that_was_chosen_is_charged_to_nobody(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TAKES_THE_PORT)
    os.mkfifo(tmp_path / "end")
    script = (str(program), str(tmp_path))
    run = make_run(tmp_path / "job", 1, script=script, replicas=2, max_restarts=0)
    outcome = play(run)
    os.close(os.open(tmp_path / "end", os.O_WRONLY | os.O_NONBLOCK))  # who has the port ends
    assert outcome.result == "completed", outcome.message
    assert run.status is not None
    assert run.status.ledger.restarts == {"infrastructure": 1}


JOB = """
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {name: mine}
spec:
  template: {spec: {containers: [{name: trainer, command: [python, train.py]}]}}
"""


def test_a_run_whose_kill_never_came_does_not_pass_for_a_test_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("print('done')\n")
    command = ["run", str(tmp_path / "job.yaml"), "--directory", str(tmp_path / "run")]
    done = CliRunner().invoke(main, [*command, "--kill", "worker=0@step=50"])
    assert "completed:" in done.output
    assert "--kill worker 0 at step 50: the run ended first, and nothing was killed" in done.output
    assert done.exit_code == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_that_saves_may_end_its_save_when_another_rank_is_lost(
    tmp_path: Path, workers: int
) -> None:
    """Most scripts overwrite files, and a half one would make each next attempt fail."""
    script = (str(PROGRAMS / "slow_save.py"), str(tmp_path))
    run = make_run(tmp_path / "job", 1, script=script, replicas=workers, min_replicas=workers)
    run.ranks = 2 // workers
    outcome = play(run)
    assert outcome.result == "completed", outcome.message
    assert (tmp_path / "found").read_text() == "40 of 40"
