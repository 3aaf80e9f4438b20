"""Exit codes and signals in words."""

from __future__ import annotations

import signal

import pytest

from regroup import cli
from regroup.training_client import run_pickled
from regroup_trainer.agent import start
from regroup_trainer.protocol.exit_codes import (
    INTERRUPTED,
    KILLED,
    SIGNALS,
    TERMINATED,
    WRONG_USAGE,
    describe_exit,
    describe_signal,
)
from regroup_trainer.system import command_line, script_children


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (-9, "SIGKILL (out of memory?)"),
        (137, "exit code 137: SIGKILL (out of memory?)"),
        (139, "exit code 139: SIGSEGV (a crash in native code)"),
        (-15, "SIGTERM"),
        (255, "exit code 255"),
        (None, "an unknown exit code"),
    ],
)
def test_an_exit_code_is_put_in_words(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


def test_signals_have_the_names_of_the_system() -> None:
    assert {number: signal.Signals(number).name for number in SIGNALS} == SIGNALS
    assert describe_signal(40) == "signal 40"


def test_signals_have_the_codes_that_programs_end_with() -> None:
    ends = (-signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM)
    assert [*map(command_line.shell_code, ends)] == [INTERRUPTED, KILLED, TERMINATED]
    assert command_line.shell_code(3) == 3
    assert command_line.TERMINATED == TERMINATED


def test_programs_that_cannot_import_the_codes_have_the_same() -> None:
    assert cli.INTERRUPTED == INTERRUPTED
    for program in (start, run_pickled, script_children):
        assert program.WRONG_USAGE == WRONG_USAGE
