"""What `$((...))` of a shell script is, as far as it can be computed here."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup.converting.shell_arithmetic import compute

KNOWN = {"NODES": "4", "GPUS": "8", "NAME": "gpt", "EMPTY": "", "OCTAL": "010"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("NODES * GPUS", 32),
        ("$NODES*${GPUS}", 32),
        (" (NODES + 2) * 3 % 5 ", 3),
        ("1024 / (2*GPUS)", 64),
        ("2 - 3 + 4", None),  # below 0 on its way
        ("RANDOM % 5", None),
        ("NAME + 1", None),
        ("EMPTY", None),
        ("OCTAL", None),
        ("NODES / 0", None),
        ("NODES ** 2", None),
        ("NODES // 2", None),
        ("NODES > 2 ? 1 : 0", None),
        ("NODES++", None),
        ("x=3", None),
        ("010", None),
        ("(" * 150, None),
        ("", None),
    ],
)
def test_whole_numbers_and_known_variables(expression: str, value: int | None) -> None:
    assert compute(expression, KNOWN, set()) == value


def test_the_variables_that_it_names() -> None:
    used: set[str] = set()
    compute("NODES*${GPUS}", KNOWN, used)
    assert used == {"NODES", "GPUS"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("+-*/%()0123456789 "), max_size=9).map("".join))
def test_a_shell_computes_the_same(expression: str) -> None:
    value = compute(expression, {}, set())
    if value is not None:
        done = subprocess.run(
            ["sh", "-c", f"echo $(({expression}))"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(value)
