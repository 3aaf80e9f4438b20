"""The shell of the walk-through: what is typed, and commands that fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from demo.errors import StoryError
from demo.screen import Screen
from demo.walkthrough.documented import Documented
from demo.walkthrough.terminal import Terminal
from demo.walkthrough.transcript import Transcript

GREET = Documented("page.md", "echo Hello NAME")
SERVES = """
import pathlib, time
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    pathlib.Path("ended").touch()
"""
"""A program, since bash loses a trapped SIGINT about once in a thousand times."""


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, {"PATH": os.environ["PATH"]}, Transcript(), Screen())


def test_a_command_is_typed_in_the_folder_of_the_user(terminal: Terminal) -> None:
    assert terminal.type(GREET, {"NAME": "you"}, more="; pwd") == f"Hello you\n{terminal.folder}\n"
    assert "$ echo Hello you; pwd\nHello you\n" in terminal.transcript.markdown()


def test_a_command_that_fails_ends_the_walk_with_what_it_printed(terminal: Terminal) -> None:
    with pytest.raises(StoryError, match="exit code 3: Hello NAME"):
        terminal.type(GREET, more="; exit 3")
    assert "Hello NAME" in terminal.transcript.markdown()


def test_a_command_that_serves_is_ended_by_ctrl_c(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVES)
    with terminal.running(f"{sys.executable} serve.py") as line:
        assert line == "ready\n"
    assert (tmp_path / "ended").exists()


def test_a_command_that_goes_on_after_ctrl_c_is_killed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demo.walkthrough.terminal.END_SECONDS", 0.1)
    with (
        pytest.raises(StoryError, match="goes on after Ctrl-C"),
        terminal.running("env --ignore-signal=INT bash -c 'echo ready; exec sleep 60'"),
    ):
        pass
