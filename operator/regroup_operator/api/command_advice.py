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
_LINE_FLAG = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
"""Of a shell: its first word that is no option is a line. `bash -lc` reads the profile first."""
_VALUE_FLAG = re.compile(r"[-+][a-zA-Z]*[oO]")
"""Of a shell: its next word belongs to it, as in `bash -euo pipefail`."""
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
    return next(iter(line_and_arguments(words)), shlex.join(words[1:]))


def line_and_arguments(words: Sequence[str]) -> list[str]:
    """LINE of `sh -e -c LINE` and the words behind it; empty for other commands."""
    rest, is_line = list(words[1:]), False
    while name(words[0]) in SHELLS - {"env"} and rest and rest[0][:1] in ("-", "+"):
        flag = rest.pop(0)
        if flag == "--":
            break
        is_line = is_line or _LINE_FLAG.fullmatch(flag) is not None
        if _VALUE_FLAG.fullmatch(flag):
            del rest[:1]
    return rest if is_line else []


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
