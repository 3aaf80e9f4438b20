"""What is read of a script for a shell, which nobody runs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup.converting.shell_text import ShellText


def commands(text: str, **known: str) -> list[tuple[str, ...]]:
    return [command.words for command in ShellText(text, known).commands if command.words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b && c; d\ne &", [("a", "b"), ("c",), ("d",), ("e",)]),
        ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
        ("# comment\na b # comment\n\na#b", [("a", "b"), ("a#b",)]),
        ("a \\\n  b \\\n  c", [("a", "b", "c")]),
        ("X=1\na $X ${X} '$X' \"$X\" \\$X", [("a", "1", "1", "$X", "1", "$X")]),
        ("a ${Y:-2} ${Y-3} $Y", [("a", "2", "3", "$Y")]),
        ("X='a b'\n$X c", [("a", "b", "c")]),
        ("a $(b | c) `d e`f", [("a", "$(b | c)", "`d e`f")]),
        ("X=$(b c)\na $X", [("a", "$X")]),
        ("export X=1 Y=2\na $Y", [("a", "2")]),
        ("a > log 2>&1", [("a",)]),
        ("a 2>&1 | tee log", [("a",)]),
        ("cat << EOF > f\na; b\n EOF\nEOF\nc", [("cat",), ("c",)]),
        ("cat <<- EOF\na\n\tEOF\nc", [("cat",), ("c",)]),
        ("cat <<< EOF\nb", [("cat",), ("b",)]),
        ("X=1\nread -r X\na $X", [("read", "-r", "X"), ("a", "$X")]),
        ('a "b', [('a "b',)]),
    ],
)
def test_words_are_those_that_a_shell_would_see(text: str, words: list[tuple[str, ...]]) -> None:
    assert commands(text) == words


def test_lines_are_counted_where_a_command_begins() -> None:
    assert [c.line for c in ShellText("#!/bin/sh\n\na \\\n b\nc", {}).commands] == [3, 5]


def test_a_command_exports_names_and_assignments() -> None:
    first, second = ShellText("A=1\nexport A B=2\nexport -n A", {}).commands[1:]
    assert (first.exports, first.assignments) == (True, {"A": "1", "B": "2"})
    assert (second.exports, second.words) == (False, ("export", "-n", "A"))


def test_variables_in_front_of_a_command_are_its_own() -> None:
    text = ShellText("A=1 B=$C d\n", {"C": "3"})
    assert text.commands[0].assignments == {"A": "1", "B": "3"}
    assert "A" not in text.variables


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab=$\\'\"`(){};&|<>#\n -X", max_size=60))
def test_any_text_is_read(text: str) -> None:
    for command in ShellText(text, {"X": "1"}).commands:
        assert command.words or command.assignments or command.exports or command.redirected


def test_a_text_that_grows_by_its_own_variables_is_read_soon() -> None:
    text = "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\nb $A\n" * 40
    assert sum(len(command.text) for command in ShellText(text, {}).commands) < 1 << 20


@pytest.mark.parametrize("unit", ["'", '"', "$(", "`", "$X", "\\", "(", "a=$X;", "<<E "])
def test_the_time_of_a_hostile_text_is_bounded(unit: str) -> None:
    start = time.process_time()
    ShellText(f"{unit * 5_000}\n" * 40, {"X": "x" * 1000})
    assert time.process_time() - start < 20
