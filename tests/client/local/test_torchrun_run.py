"""Stock torchrun on this machine, with kills: real agents, a real store, ranks that print their
world size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from regroup.local.record_file import read_record
from regroup.local.torchrun_run import TorchrunRun, Wanted
from regroup_operator.api.user_script import Script
from regroup_trainer.protocol.job_status import Outcome

pytestmark = pytest.mark.timeout(280)
WAITS = """
import os, pathlib, sys, time
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("rank", rank, "of", size, "says", os.environ["GREETING"], flush=True)
print("rank", rank, "of", size, "warns", file=sys.stderr)
while not pathlib.Path(os.environ["REGROUP_DIRECTORY"], "go").exists():
    time.sleep(0.02)
"""
JOB = """
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {name: mine}
spec:
  launcher: torchrun
  template: {spec: {containers: [{name: trainer, command: [python, train.py]}]}}
"""


def make_run(
    folder: Path,
    program: str,
    replicas: int = 2,
    max_restarts: int = 10,
    arguments: tuple[str, ...] = (),
) -> TorchrunRun:
    (folder / "train.py").write_text(program)
    return TorchrunRun(
        Wanted(
            job="mine",
            script=Script("python", ("train.py", *arguments), {"GREETING": "hello"}),
            replicas=replicas,
            nnodes=f"{replicas}:{replicas}",
            ranks=1,
            max_restarts=max_restarts,
            working_directory=folder,
            directory=folder / "run",
        ),
        replace_seconds=0.0,
    )


def play(
    run: TorchrunRun, acts: list[Callable[[TorchrunRun], object]]
) -> tuple[Outcome, list[str]]:
    """Run to the end. Each act follows when all ranks have printed their lines since the last
    one.
    """
    lines: list[str] = []
    printed: set[str] = set()

    def on_line(line: str) -> None:
        _, is_of_a_rank, line = line.rpartition(": rank ")
        if not is_of_a_rank:
            return  # of the agent
        lines.append(line)
        printed.add(line)
        if len(printed) == 2 * run.wanted.replicas and acts:
            printed.clear()
            acts.pop(0)(run)

    async def bounded() -> Outcome:
        async with asyncio.timeout(240):
            return await run.run()

    run.on_line = on_line
    outcome = asyncio.run(bounded())
    assert not acts, lines
    return outcome, lines


@pytest.mark.slow
def test_a_killed_worker_rejoins_and_without_its_store_the_next_attempt_begins(
    tmp_path: Path,
) -> None:
    def kill_store(run: TorchrunRun) -> None:
        assert run.store is not None
        run.store.kill()

    run = make_run(tmp_path, WAITS)
    go = run.wanted.directory / "go"
    outcome, lines = play(run, [lambda run: run.kill_worker(1), kill_store, lambda run: go.touch()])
    assert outcome.result == "completed"
    assert run.restarts == 1
    assert run.attempt == 2
    expected = {f"{rank} of 2 {words}" for rank in range(2) for words in ("says hello", "warns")}
    assert set(lines) == expected


@pytest.mark.slow
def test_a_killed_rank_is_torchruns_own_matter_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    run = make_run(tmp_path, WAITS, replicas=1)
    outcome, lines = play(run, [lambda run: run.kill_rank(0), lambda run: run.suspend()])
    assert outcome.result == "suspended"
    assert run.restarts == 0
    assert lines == ["0 of 1 says hello", "0 of 1 warns"] * 2


@pytest.mark.slow
def test_a_program_that_torchrun_gives_up_on_fails_with_its_last_lines(tmp_path: Path) -> None:
    run = make_run(tmp_path, "raise SystemExit(3)", replicas=1, max_restarts=1)
    outcome, _ = play(run, [])
    assert outcome.result == "failed"
    assert "torchrun gave up (spec.restartPolicy.maxRestarts=1)" in outcome.message
    assert outcome.message.startswith("rank 0 failed with exit code 3; torchrun gives up after 1")


ENDS = """
import atexit, os, pathlib, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    pathlib.Path("parent_of_rank_0").write_text(str(os.getppid()))
dist.barrier()
dist.destroy_process_group()
if rank == 1 and sys.argv[1:] == ["aborts"]:
    atexit.register(os.abort)
elif rank == 1:
    process = pathlib.Path("/proc", pathlib.Path("parent_of_rank_0").read_text())
    while process.exists():  # until torchrun has seen that rank 0 ended well
        time.sleep(0.02)
    raise ValueError("a bug of rank 1")
"""


@pytest.mark.slow
def test_a_rank_that_aborts_after_the_last_line_does_not_undo_the_work(tmp_path: Path) -> None:
    run = make_run(tmp_path, ENDS, arguments=("aborts",))
    seen: list[str] = []
    run.on_line = seen.append
    outcome = asyncio.run(run.run())
    assert outcome.result == "completed", outcome.message
    assert (run.attempt, run.restarts) == (1, 0)
    assert "rank 1: was ended by SIGABRT after the script's last line: its work counts" in seen


@pytest.mark.long
def test_a_rank_that_fails_after_others_ended_well_fails_the_job_when_its_budget_is_spent(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, ENDS, max_restarts=1)
    outcome = asyncio.run(run.run())
    assert outcome.result == "failed", "it never completes: the work of rank 1 is missing"
    assert outcome.message.startswith("rank 1 failed with exit code 1:")
    assert "ValueError: a bug of rank 1\nworkers failed 2 times" in outcome.message
    assert run.attempt == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("worker=1@step=5", "set spec.progressPattern, or use @seconds= or @line="),
        ("coordinator@seconds=5", "torchrun has no coordinator"),
    ],
)
def test_faults_that_torchrun_cannot_have_are_refused(
    tmp_path: Path, fault: str, words: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    done = CliRunner().invoke(
        main, ["run", str(file), "--directory", str(tmp_path / "run"), "--kill", fault]
    )
    assert done.exit_code == 1
    assert words in done.output


TAKES_LOCAL_RANK = """
import os
import torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
"""
SPAWNS = """
import torch.multiprocessing as mp
mp.spawn(print, nprocs=2)
"""


OWN_RANKS = (Path(__file__).parents[2] / "support/programs/own_ranks.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        (TAKES_LOCAL_RANK, (), "init_process_group got rank 0, which is LOCAL_RANK"),
        pytest.param(
            SPAWNS, (), "torch.multiprocessing.spawn starts ranks", marks=pytest.mark.long
        ),
        (OWN_RANKS, ("fork",), "in a process that the script has started"),
        pytest.param(
            OWN_RANKS,
            ("spawn",),
            "in a process that the script has started",
            marks=pytest.mark.long,
        ),
    ],
    ids=["LOCAL_RANK", "torch's spawn", "fork", "spawn"],
)
def test_ranks_that_would_wait_in_vain_end_the_job_at_the_first_try(
    tmp_path: Path, program: str, arguments: tuple[str, ...], words: str
) -> None:
    run = make_run(tmp_path, program, arguments=arguments)
    outcome, _ = play(run, [])
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert words in outcome.message
    assert run.restarts <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "tries"),
    [("import a_module_that_is_nowhere", 1), ("{}['MODEL_SIZE']", 3)],
    ids=["import", "KeyError"],
)
def test_a_program_that_cannot_start_fails_without_all_its_tries(
    tmp_path: Path, program: str, tries: int
) -> None:
    (tmp_path / "tried").touch()
    count = "with open('tried', 'a') as tried: tried.write('.')\n"
    run = make_run(tmp_path, count + program, replicas=1)
    notes: list[str] = []
    seen: list[str] = []
    run.on_note, run.on_line = notes.append, seen.append
    outcome = asyncio.run(run.run())
    assert (outcome.result, outcome.reason) == ("failed", "FailsAtStart")
    assert "running train.py on 1 worker" in notes
    assert run.restarts == 0, "no worker was replaced"
    assert [line for line in seen if not line.startswith("rank 0: ")] == []
    assert outcome.message.startswith("rank 0 failed with exit code 1; it cannot start:\nTraceback")
    assert (tmp_path / "tried").stat().st_size == tries


STEPS = """
import os, pathlib, time
print("threads", os.environ.get("OMP_NUM_THREADS"))
print("step 3", flush=True)
while not (seen := pathlib.Path("seen")).exists():
    seen.touch()
    time.sleep(200)
"""


@pytest.mark.slow
def test_a_step_that_the_pattern_finds_is_a_moment_for_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "train.py").write_text(STEPS)
    (tmp_path / "job.yaml").write_text(
        JOB.replace("spec:\n", "spec:\n  progressPattern: 'step (?P<step>\\d+)'\n", 1)
    )
    command = ["run", str(tmp_path / "job.yaml"), "--directory", str(tmp_path / "run")]
    done = CliRunner().invoke(main, [*command, "--kill", "rank=0@step=3"])
    assert done.exit_code == 0, done.output
    assert "killed rank 0 at step 3" in done.output
    assert "rank 0: threads None" in done.output, "torchrun sets it for several ranks only"
    record = read_record(tmp_path / "run")
    assert record is not None and record.outcome is not None
    ended = record.launcher, record.outcome.result, record.step
    assert ended == ("torchrun", "completed", 3)
