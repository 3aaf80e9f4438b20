"""Finds the user's own command in one that cannot be taken: behind a program that starts it, in a
line for a shell, in one word. Messages then say what to write. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

INTERPRETER = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?", re.ASCII)
STARTERS = frozenset({"torchrun", "accelerate", "accelerate-launch"})
"""Launchers whose commands can be taken."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "env"})
_LINE_FLAG = re.compile(r"-[a-z]*c")
"""Of a shell: its next word is a line. `bash -lc` reads the profile first."""
_SHELL_SYNTAX = re.compile(r"[;&|<>$`(){}*?\n]|(?:^|\s)\w+=")
_STEPS = re.compile(r"&&|;|\n")


def own_command(words: Sequence[str]) -> list[str]:
    """What a program such as `uv run`, `nohup` or `mpirun` is asked to start; empty: unknown."""
    for place, word in enumerate(words):
        if INTERPRETER.fullmatch(word) or name(word) in STARTERS:
            return list(words[place:])
    for place, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return ["python", *words[place:]]
    return []


def command_of_line(line: str) -> tuple[list[str], bool]:
    """The command in a line for a shell, and whether the line has more that has to go elsewhere:
    variables, other steps, redirections. No command: empty.
    """
    steps = [step.strip() for step in _STEPS.split(line) if step.strip()]
    last = steps[-1].removesuffix("&").removeprefix("exec ").strip() if steps else ""
    try:
        words = shlex.split(last)
    except ValueError:
        return [], True
    command = own_command(words)
    before = words[: len(words) - len(command)]
    more = len(steps) > 1 or any("=" in word for word in before)
    return ([], True) if _SHELL_SYNTAX.search(" ".join(command)) else (command, more)


def line_of_shell(words: Sequence[str]) -> str:
    """The line that a shell is asked to read; that of `sh -c LINE`, or all that follows."""
    if len(words) == 3 and _LINE_FLAG.fullmatch(words[1]):
        return words[2]
    return shlex.join(words[1:])


def words_of_line(word: str) -> list[str]:
    """The words of a command line that was written as one word; empty where it may be the path of
    a script.
    """
    try:
        words = shlex.split(word)
    except ValueError:
        return []
    starts = words and (INTERPRETER.fullmatch(words[0]) or name(words[0]) in STARTERS | SHELLS)
    return words if starts and len(words) > 1 else []


def name(word: str) -> str:
    """The program without its folder."""
    return word.rsplit("/", 1)[-1]
