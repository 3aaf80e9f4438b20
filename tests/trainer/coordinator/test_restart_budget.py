"""When a program cannot start, when it deserves more tries, and how its end is described."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regroup.training_client import run_pickled
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.coordinator.restart_budget import (
    LEAST_SECONDS,
    MOST_IN_A_ROW,
    TRIES,
    UNSEEN_SECONDS,
    RestartBackoff,
    StartFailures,
    UnchargedEnds,
    describe,
    is_asked_to_end,
    refusal,
)
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationNumber, MemberRecord
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello

KEY = "Traceback ...\nKeyError: 'MODEL_SIZE'\n"
IMPORT = "Traceback ...\nModuleNotFoundError: No module named 'mine'\n"
USAGE = "usage: train.py --lr LR\ntrain.py: error: the following arguments are required: --lr\n"
SCRIPT = make_desired(script=("train.py",))


def make_end(rank: int, message: str, **changes: object) -> RankExit:
    fields = {"generation": GenerationNumber(1, 1), "rank": rank, "exit_code": 1, "cause": "error"}
    return RankExit.model_validate({**fields, "message": message, **changes})


def failed(
    *messages: str, nodes: tuple[str, ...] = ("a",), address: str = "10.0.0.7", exit_code: int = 1
) -> tuple[CurrentGeneration, Failure]:
    """A generation of two ranks of a script that began at 0; rank n ended with the n-th message."""
    hellos = tuple(
        make_hello(rank, node=nodes[rank % len(nodes)], store=f"{address}:3000")
        for rank in range(2)
    )
    record = make_record(GenerationNumber(1, 1), hellos, SCRIPT, ("Nothing", "test"))
    current = CurrentGeneration(record, begun=0.0)
    for rank, message in enumerate(messages):
        if message:
            current.exits[rank] = make_end(rank, message, exit_code=exit_code)
    first = next(iter(current.exits.values()))
    return current, Failure(1.0, "application", "a rank failed", exit=first)


def tries(*ends: tuple[CurrentGeneration, Failure], now: float = 2.0) -> list[bool]:
    """After which of these ends the job fails."""
    failures = StartFailures()
    return [failures.count(*end, now) is not None for end in ends]


def test_the_same_error_three_times_in_a_row_is_the_end() -> None:
    assert tries(*[failed(KEY)] * TRIES) == [False, False, True]
    assert tries(failed("E: port 29500"), failed("E: port 1"), failed("E: port 77"))[-1]
    assert not any(tries(failed(KEY), failed(KEY), failed("another"), failed(KEY), failed(KEY)))


def test_an_error_of_import_or_syntax_on_all_ranks_is_the_end_at_once() -> None:
    assert tries(failed(IMPORT, IMPORT)) == [True]
    assert tries(failed("  x =\nSyntaxError: invalid syntax", "...\nSyntaxError: invalid syntax"))
    assert tries(failed(IMPORT)) == [False]
    assert tries(failed(IMPORT, KEY)) == [False]


def test_an_error_of_usage_ends_a_script_at_once_where_all_ranks_show_it() -> None:
    wrong = failed(USAGE, USAGE, exit_code=2)
    assert tries(wrong) == [True]
    assert tries(failed(USAGE, KEY, exit_code=2)) == [False]
    assert not any(tries(*[failed(USAGE, nodes=("a", "b"), exit_code=2)] * 5))
    assert not any(tries(*[wrong] * 5, now=61.0))
    assert StartFailures().awaits_others(*failed(USAGE, exit_code=2), now=2.9)
    full = "OSError: [Errno 28] No space left on device"
    assert not any(tries(*[failed(full, full, exit_code=2)] * 5))


def test_a_pickle_of_another_python_ends_the_job_at_its_first_start_and_is_quoted(
    tmp_path: Path,
) -> None:
    (tmp_path / "python").write_text("3.9")
    program = shutil.copy(run_pickled.__file__, tmp_path)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    current, failure = failed(ended.stderr, ended.stderr, exit_code=ended.returncode)
    assert tries((current, failure)) == [True]
    why = describe(make_end(0, ended.stderr, exit_code=ended.returncode), None)
    assert ": the function was pickled by Python 3.9, and this image has 3." in why


def test_exit_code_2_says_that_a_rank_is_hopeless_by_an_error_of_ours_alone() -> None:
    own = make_end(0, USAGE, exit_code=2)
    assert refusal(own, 0, SCRIPT) is None
    assert refusal(own, 0, make_desired()) is not None
    ours = make_end(0, "KeyError: handled\nConfigurationError: rank 0 ...\n", exit_code=2)
    assert refusal(ours, 0, SCRIPT) is not None
    assert refusal(make_end(0, "sh: torchrun: not found", exit_code=127), 0, SCRIPT) is not None


def test_the_other_ranks_get_two_seconds_to_show_such_an_error() -> None:
    failures = StartFailures()
    assert failures.awaits_others(*failed(IMPORT), now=2.9)
    assert not failures.awaits_others(*failed(IMPORT), now=3.1)
    assert not failures.awaits_others(*failed(IMPORT, IMPORT), now=1.0)
    assert not failures.awaits_others(*failed(KEY), now=1.0)
    assert not StartFailures(can_start=True).awaits_others(*failed(IMPORT), now=1.0)


def test_errors_that_may_pass_keep_their_budget() -> None:
    full = "OSError: [Errno 28] No space left on device"
    assert not any(tries(*[failed(full, full)] * 5))
    handled = "Traceback (most recent call last):\n  File ...\nKeyError: 1\nConnection refused"
    assert not any(tries(*[failed(handled, handled)] * 5))


def test_what_torch_writes_around_an_error_does_not_hide_it() -> None:
    def of_rank(rank: int) -> str:
        lines = ("Traceback (most recent call last):", "  File ...", IMPORT.split("\n")[1])
        return "".join(f"[rank{rank}]: {line}\n" for line in lines) + "goodbye by atexit\n"

    assert tries(failed(of_rank(0), of_rank(1))) == [True]


def test_an_error_of_one_node_alone_keeps_its_budget() -> None:
    assert not any(tries(*[failed(KEY, nodes=("a", "b"))] * 5))
    assert tries(*[failed(KEY, KEY, nodes=("a", "b"))] * 3)[-1]
    assert tries(failed(KEY, nodes=("a", "b")), *[failed("", KEY, nodes=("a", "b"))] * 2)[-1]


def test_all_workers_of_a_run_on_one_machine_are_one_node() -> None:
    local = failed(KEY, nodes=("local-0", "local-1"), address="127.0.0.1")
    assert tries(*[local] * TRIES) == [False, False, True]


def test_a_program_that_has_started_once_keeps_its_budget() -> None:
    assert not any(tries(*[failed(KEY)] * 5, now=61.0))
    current, failure = failed(KEY)
    current.first_commit = Progress(generation=current.number, rank=0, step=1, time=0.0)
    assert not any(tries((current, failure), *[failed(KEY)] * 5))


@pytest.mark.parametrize(
    ("cause", "signal", "counts"),
    [
        ("signal", 9, False),
        ("oom", 9, False),
        ("peer", 6, False),
        ("signal", 7, False),  # a full /dev/shm
        ("signal", 11, True),
        ("signal", 6, True),
    ],
)
def test_signals_and_lost_peers_are_no_errors_of_the_program_but_crashes_are(
    cause: str, signal: int, counts: bool
) -> None:
    current, failure = failed(KEY)
    end = make_end(0, KEY, cause=cause, signal=signal)
    current.exits[0], failure = end, Failure(1.0, "application", "it ended", exit=end)
    assert tries(*[(current, failure)] * TRIES) == [False, False, counts]


def test_what_the_next_coordinator_learns_of_the_tries_stays_small() -> None:
    failures = StartFailures()
    for _ in range(5):
        failures.count(*failed(KEY, nodes=("a", "b")), 2.0)
    assert (failures.record(1.0).tries, failures.record(1.0).machines) == (TRIES, ("a",))
    for node in "abc":
        failures.count(*failed(KEY, nodes=(node,)), 2.0)
    known = failures.record(1.0)
    assert known.machines == ("a", "b")
    assert StartFailures.resume(2, known, 0.0).count(*failed(KEY, nodes=("c",)), 2.0) is not None


def uncharged(*ends: tuple[float, int], lived: float = 60.0) -> list[bool]:
    """After which of these ends, (time, committed step), the job fails. Its program reports
    nothing, and each generation has lived for so many seconds.
    """
    (current, failure), counted, fails = failed("lost a peer"), UnchargedEnds(), []
    for now, step in ends:
        current.begun = now - lived
        fails.append(counted.count(current, failure, step, now) != "")
    return fails


def test_ends_that_are_charged_to_nobody_are_bounded_in_number_and_time() -> None:
    row = [(1000.0 + LEAST_SECONDS * number, 5) for number in range(MOST_IN_A_ROW)]
    assert uncharged(*row) == [False] * (MOST_IN_A_ROW - 1) + [True]
    assert not any(uncharged(*[(1000.0, 5)] * 3 * MOST_IN_A_ROW))
    assert uncharged(*[(1000.0, 5)] * MOST_IN_A_ROW, (1000.0 + LEAST_SECONDS, 5))[-1]


def test_a_new_step_begins_the_row_of_such_ends_anew_and_an_old_one_does_not() -> None:
    row = [(1000.0 + LEAST_SECONDS * number, 5) for number in range(MOST_IN_A_ROW)]
    assert not any(uncharged(*row[:-1], (1e5, 6)))
    assert uncharged(*row[:-1], (1e5, 4)) == [False] * (MOST_IN_A_ROW - 1) + [True]


def test_a_program_that_reports_nothing_counts_as_going_forward_if_it_lives_for_an_hour() -> None:
    row = [(UNSEEN_SECONDS * number, 0) for number in range(2 * MOST_IN_A_ROW)]
    assert not any(uncharged(*row, lived=UNSEEN_SECONDS))
    assert any(uncharged(*row, lived=UNSEEN_SECONDS - 1))


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"cause": "signal", "signal": 15, "exit_code": 143}, True),
        ({"cause": "signal", "signal": 2, "exit_code": 130}, True),
        ({"exit_code": 143}, True),  # it saves upon the signal, and ends as shells do
        ({"exit_code": 130}, True),  # KeyboardInterrupt
        ({"cause": "signal", "signal": 9, "exit_code": 137}, False),
        ({"cause": "oom", "signal": 15, "exit_code": 143}, False),
        ({"cause": "peer", "signal": 15, "exit_code": 143}, False),  # its agent sent it
        ({"exit_code": 1}, False),
    ],
)
def test_which_ends_somebody_outside_of_the_job_has_asked_for(
    changes: dict[str, object], asked: bool
) -> None:
    assert is_asked_to_end(make_end(0, "", **changes)) is asked


def test_backoff_doubles_without_progress_and_starts_again_after_it() -> None:
    restarts, desired = RestartBackoff(), make_desired(backoff_seconds=1.0, max_backoff_seconds=3.0)
    assert [restarts.pause(5, desired) for _ in range(5)] == [0.0, 1.0, 2.0, 3.0, 3.0]
    assert restarts.pause(6, desired) == 0.0


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            {"cause": "oom", "exit_code": 137, "signal": 9},
            (
                "rank 1 on gpt-w0-1 (node a) ran out of memory and was killed (raise the memory "
                "limit, or use less)"
            ),
        ),
        (
            {"cause": "signal", "exit_code": 137, "signal": 9, "message": "INFO step 45"},
            "rank 1 on gpt-w0-1 (node a) was ended by SIGKILL (out of memory?)",
        ),
        (
            {"cause": "peer", "exit_code": 137, "signal": 9, "message": "it hung and was killed"},
            "rank 1 on gpt-w0-1 (node a) was ended by SIGKILL: it hung and was killed",
        ),
        (
            {"cause": "error", "exit_code": 1, "message": "x\nValueError: y\n"},
            "rank 1 on gpt-w0-1 (node a) ended with exit code 1: ValueError: y",
        ),
    ],
)
def test_the_end_of_a_rank_is_described_in_a_sentence(
    end: dict[str, object], sentence: str
) -> None:
    report = RankExit.model_validate({"generation": GenerationNumber(1, 1), "rank": 1, **end})
    place = MemberRecord(member="u", index=0, pod="gpt-w0-1", node="a", first_rank=0, ranks=2)
    assert describe(report, place) == sentence
