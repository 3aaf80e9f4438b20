"""A custom loop, alone and with any world size: the same steps, the same samples, the same end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.checkpoint.history import audit, committed
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.generation import Decision, GenerationNumber, GenerationRecord
from regroup_trainer.system.program_error import end_may_pass, exception_line
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config
from tests.support.waiting import wait_until

FP32_ROUNDING = 1e-5
PROGRAM = Path(__file__).parents[2] / "support" / "own_program.py"
STEPS = 6


def record(
    directory: Path, world_size: int, *arguments: str, n: int = 1, **changes: Any
) -> GenerationRecord:
    made = generation(
        directory, world_size, train_config(), number=GenerationNumber(1, n), **changes
    )
    script = (str(PROGRAM), f"--steps={STEPS}", *arguments)
    return made.model_copy(update={"desired": made.desired.model_copy(update={"script": script})})


@pytest.fixture(scope="module")
def reference(template: Template, tmp_path_factory: pytest.TempPathFactory) -> RankOutcome:
    """The program in one process, never disturbed."""
    return succeeded(template.run(record(tmp_path_factory.mktemp("reference"), 1)))[0]


@pytest.mark.parametrize(
    ("world_size", "arguments"),
    [
        (2, []),
        (3, ["--micro-batch=2"]),
        (2, ["--strategy=fsdp", "--micro-batch=3"]),
        (12, ["--strategy=fsdp"]),
    ],
    ids=["ddp", "ddp accumulating", "fsdp accumulating", "more ranks than samples"],
)
def test_any_world_size_trains_as_one_process_does(
    template: Template,
    tmp_path: Path,
    reference: RankOutcome,
    world_size: int,
    arguments: list[str],
) -> None:
    rank0 = succeeded(template.run(record(tmp_path, world_size, *arguments)))[0]
    assert rank0.losses == pytest.approx(reference.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in rank0.evaluated] == pytest.approx(
        [e.loss for e in reference.evaluated], rel=FP32_ROUNDING
    )
    assert audit(tmp_path) == []


def test_a_program_that_no_longer_fits_its_checkpoint_is_refused_by_its_argument(
    template: Template, tmp_path: Path
) -> None:
    succeeded(template.run(record(tmp_path, 1)))
    changed = template.run(record(tmp_path, 1, "--points=60", n=2))[0]
    assert changed.exit_code == 2
    assert "session.batches: dataset: Points of 60 differs from Points of 50" in changed.stderr
    assert "or give Session another directory if you started it yourself" in changed.stderr


def test_a_data_set_with_other_samples_is_refused_unless_somebody_wants_to_go_on(
    template: Template, tmp_path: Path
) -> None:
    succeeded(template.run(record(tmp_path, 2), decisions={4: Decision.STOP}))
    refused = template.run(record(tmp_path, 1, "--data=other", n=2))[0]
    assert refused.exit_code == 2
    assert "session.batches: dataset: Points of 50 has other samples (" in refused.stderr
    assert "with which checkpoint step 4 was trained" in refused.stderr
    assert "To go on with these samples, set REGROUP_OTHER_DATA=1" in refused.stderr
    same = succeeded(template.run(record(tmp_path, 1, n=3), decisions={5: Decision.STOP}))[0]
    assert same.restored.step == 4
    wanted = record(tmp_path, 2, "--data=other", n=4)
    accepts = "tests.support.rank_faults:accept_other_data"
    assert succeeded(template.run(wanted, entry=accepts))[0].restored.step == 5
    ended = template.run(record(tmp_path, 1, n=5))[0]
    assert ended.exit_code == 2, "the new samples count from then on"


def test_samples_that_differ_between_processes_are_named_at_once_and_never_refused(
    template: Template, tmp_path: Path
) -> None:
    first = template.run(record(tmp_path, 2, "--data=unseeded"), decisions={2: Decision.STOP})
    succeeded(first)
    words = "the samples of Points of 50 are not the same in each process"
    assert [words in outcome.stderr for outcome in first] == [True, False]
    again = succeeded(template.run(record(tmp_path, 2, "--data=unseeded", n=2)))
    assert again[0].restored.step == 2


def test_samples_of_one_worker_count_once_a_second_start_has_read_the_same(
    template: Template, tmp_path: Path
) -> None:
    for n, arguments in enumerate(([], [], ["--data=other"]), 1):
        stop = {2 * n: Decision.STOP}
        (outcome,) = template.run(record(tmp_path / "stable", 1, *arguments, n=n), decisions=stop)
        assert outcome.exit_code == (2 if n == 3 else 0)
    for n in (1, 2, 3):
        unseeded = record(tmp_path / "unseeded", 1, "--data=unseeded", n=n)
        succeeded(template.run(unseeded, decisions={2 * n: Decision.STOP}))


def test_data_sets_of_other_sizes_on_some_ranks_are_refused_before_training(
    template: Template, tmp_path: Path
) -> None:
    outcomes = template.run(record(tmp_path, 2, "--data=larger"))
    assert [outcome.exit_code for outcome in outcomes] == [2, 2]
    words = "dataset: Points of 50 on rank 0, Points of 51 on rank 1: give all ranks the same"
    assert all(words in outcome.stderr for outcome in outcomes)


def test_losses_fall_and_the_end_is_reported(reference: RankOutcome) -> None:
    assert reference.losses[-1] < reference.losses[0]  # type: ignore[operator]
    assert reference.finished
    assert (reference.finished.step, reference.finished.reason) == (STEPS, "completed")
    assert reference.restored.total_steps == STEPS
    assert [saved.step for saved in reference.saved] == [STEPS]
    assert all(report.counts_samples for report in reference.progress)


def test_resizes_leave_no_trace_in_losses_rates_and_samples(
    template: Template, tmp_path: Path, reference: RankOutcome
) -> None:
    losses: list[float | None] = []
    rates: list[float] = []
    for n, (world_size, strategy) in enumerate([(3, "ddp"), (2, "fsdp"), (1, "ddp")], start=1):
        leave = {2 * n: Decision.LEAVE} if n < 3 else {}
        rank0 = succeeded(
            template.run(
                record(tmp_path, world_size, f"--strategy={strategy}", n=n), decisions=leave
            )
        )[0]
        losses += rank0.losses
        rates += [progress.learning_rate for progress in rank0.progress]
    assert losses == pytest.approx(reference.losses, rel=FP32_ROUNDING)
    assert rates == pytest.approx([progress.learning_rate for progress in reference.progress])
    assert [step.world for step in committed(tmp_path)] == [3, 3, 2, 2, 1, 1]
    assert audit(tmp_path) == []


def test_a_resumed_run_draws_the_random_numbers_of_an_undisturbed_one(
    template: Template, tmp_path: Path, reference: RankOutcome
) -> None:
    whole = succeeded(template.run(record(tmp_path / "whole", 1, "--dropout=0.5")))[0].losses
    parts: list[float | None] = []
    for n, decisions in enumerate(({3: Decision.STOP}, {}), start=1):
        made = record(tmp_path / "parts", 1, "--dropout=0.5", n=n)
        parts += succeeded(template.run(made, decisions=decisions))[0].losses
    assert parts == pytest.approx(whole)
    assert whole != pytest.approx(reference.losses, rel=FP32_ROUNDING), "numbers were drawn"


def test_other_objects_of_the_program_are_restored(template: Template, tmp_path: Path) -> None:
    succeeded(template.run(record(tmp_path, 2), decisions={4: Decision.STOP}))
    rank0 = succeeded(
        template.run(record(tmp_path, 2, "--count-file=" + str(tmp_path / "counts"), n=2))
    )[0]
    assert rank0.restored.step == 4
    assert json.loads((tmp_path / "counts").read_text()) == STEPS


def test_a_lost_rank_is_a_lost_peer_to_the_others(template: Template, tmp_path: Path) -> None:
    lost = template.run(
        record(tmp_path, 3),
        entry="tests.support.rank_faults:die_after_step",
        options={"rank": 1, "step": 3},
    )
    assert [outcome.exit_code for outcome in lost] == [
        PEER_LOST_EXIT_CODE,
        137,
        PEER_LOST_EXIT_CODE,
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fail=raise"], 1, "ValueError: a bug of the user's own"),
        (["--fail=exit"], 3, ""),
        (
            ["--fail=not-finite"],
            2,
            "NonFiniteError: step 3: the loss or its gradients are not finite",
        ),
        (["--fail=no-step"], 2, "call session.step() after each backward"),
        (["--fail=twice"], 2, "session.backward: called twice for one batch"),
        (["--fail=array"], 2, "session.attach: count.state_dict()['value'] is a numpy.ndarray"),
        (["--fail=no-optimizer"], 2, "call session.attach(optimizer) first"),
    ],
)
def test_a_program_that_fails_ends_as_python_would(
    template: Template, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (outcome,) = template.run(record(tmp_path, 1, *arguments))
    assert outcome.exit_code == code
    assert words in outcome.stderr
    assert outcome.finished is None


TAKE_AT_THE_END = "tests.support.rank_faults:take_at_the_end"
FAILURES = pytest.mark.parametrize(
    ("failure", "code"), [("raise", 1), ("exit", 3)], ids=["an error", "an exit code"]
)


@FAILURES
def test_a_program_that_fails_ends_its_save_under_way(
    template: Template, tmp_path: Path, failure: str, code: int
) -> None:
    made = record(tmp_path, 1, f"--fail={failure}", "--fail-after=3")
    options, decisions = {"what": "save"}, {2: Decision.SAVE}
    (outcome,) = template.run(made, entry=TAKE_AT_THE_END, options=options, decisions=decisions)
    assert outcome.exit_code == code
    assert [path.name for path in tmp_path.glob("checkpoints/step-*")] == ["step-2"]


@FAILURES
def test_a_program_that_fails_writes_the_last_lines_of_its_history(
    template: Template, tmp_path: Path, failure: str, code: int
) -> None:
    made = record(tmp_path, 1, f"--fail={failure}", "--fail-after=3")
    (outcome,) = template.run(made, entry=TAKE_AT_THE_END, options={"what": "history"})
    assert outcome.exit_code == code
    assert [step.step for step in committed(tmp_path)] == [1, 2, 3]


def test_a_program_whose_loss_is_refused_ends_its_save_under_way(
    template: Template, tmp_path: Path
) -> None:
    """What we refuse in a program is its failure too."""
    made = record(tmp_path, 1, "--fail=not-finite")
    options, decisions = {"what": "save"}, {2: Decision.SAVE}
    (outcome,) = template.run(made, entry=TAKE_AT_THE_END, options=options, decisions=decisions)
    assert outcome.exit_code == 2
    assert [path.name for path in tmp_path.glob("checkpoints/step-*")] == ["step-2"]


def test_a_rank_whose_own_code_is_slow_stands_out(template: Template, tmp_path: Path) -> None:
    outcomes = succeeded(template.run(record(tmp_path, 2, "--fail=slow")))
    usual, slow = (
        statistics.median(report.compute_seconds for report in o.progress) for o in outcomes
    )
    assert 0 < 2 * usual < slow


def test_a_script_that_is_not_there_is_named(template: Template, tmp_path: Path) -> None:
    made = record(tmp_path, 1)
    made = made.model_copy(
        update={"desired": made.desired.model_copy(update={"script": ("nowhere.py",)})}
    )
    (outcome,) = template.run(made)
    assert outcome.exit_code == 2
    # An error of usage, and not of ours: it may be missing on one node alone.
    assert outcome.stderr.startswith("template.spec.containers[trainer].command: nowhere.py is no ")


def test_a_port_that_a_script_wants_twice_is_its_error_with_what_to_change(
    template: Template, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import socket\none = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_server(one.getsockname())\n"
    )
    made = record(tmp_path, 1)
    script = {"script": (str(program),)}
    made = made.model_copy(update={"desired": made.desired.model_copy(update=script)})
    (outcome,) = template.run(made)
    assert outcome.exit_code == 1
    assert "OSError: [Errno 98]" in exception_line(outcome.stderr)
    assert outcome.stderr.endswith('int(os.environ["RANK"]), or listen in one rank alone\n')
    assert not end_may_pass(outcome.stderr)


def test_a_plain_program_gets_what_torchrun_gives(template: Template, tmp_path: Path) -> None:
    made = record(tmp_path, 2)
    script = (str(PROGRAM.with_name("plain_program.py")), str(tmp_path))
    made = made.model_copy(update={"desired": made.desired.model_copy(update={"script": script})})
    outcomes = succeeded(template.run(made))
    assert [(end.step, end.reason) for o in outcomes if (end := o.finished)] == [
        (0, "completed")
    ] * 2
    written = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert written == [
        {"rank": rank, "size": 2, "sum": 3.0, "name": "__main__"} for rank in range(2)
    ]


@contextlib.contextmanager
def start(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program, until the block ends."""
    command = [sys.executable, str(PROGRAM), f"--directory={directory}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_without_an_agent_a_program_that_fails_ends_its_save_under_way(tmp_path: Path) -> None:
    with start(tmp_path, "--steps=9", "--fail=raise", "--fail-after=5") as program:
        program.communicate(timeout=100)
    assert program.returncode == 1
    assert [path.name for path in tmp_path.glob("checkpoints/step-*")] == ["step-4"]
    assert [step.step for step in committed(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.long
@pytest.mark.slow
def test_without_an_agent_a_signal_saves_and_the_next_start_resumes(tmp_path: Path) -> None:
    with start(tmp_path, "--steps=1000000") as first:
        # Any one will do: the first may be pruned before it is seen here.
        wait_until("a checkpoint", lambda: list(tmp_path.glob("checkpoints/step-*")), seconds=100)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    assert first.returncode == 143
    done = committed(tmp_path)[-1].step
    with start(tmp_path, f"--steps={done + 5}") as second:
        output, _ = second.communicate(timeout=100)
    assert second.returncode == 0
    assert f"resumed from step {done}" in output
    assert [step.step for step in committed(tmp_path)] == list(range(1, done + 6))
    assert audit(tmp_path) == []
