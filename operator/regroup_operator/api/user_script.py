"""The user's script: command and args of `spec.template.spec.containers[trainer]`, for every
launcher.

It must be a Python script, which is started once for each rank: `[python, train.py, --epochs, "5"]`
or `[python, -m, package.train]`. A relative path is relative to the container's `workingDir`. In a
local run it is relative to the folder of the job's file, so that one file serves both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COMMAND_FIELD = "spec.template.spec.containers[trainer].command"
_MAIN_CONTAINER = "trainer"
_INTERPRETER = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?")
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun"})


@dataclass(frozen=True)
class Script:
    """What a rank runs."""

    interpreter: str
    """Python of the image, a name or a path."""
    arguments: tuple[str, ...]
    """Path of a script and its arguments, or `-m`, a module and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Plain values of the container's `env`, which a local run can honour."""


def user_script(template: Mapping[str, Any] | None) -> Script | None:
    """The script of a pod template; None when the template has no command. Raises ValueError, which
    names the field.
    """
    container = main_container(template)
    words = [*_words(container, "command"), *_words(container, "args")]
    if not words:
        return None
    interpreter, rest = (
        ("python", words) if not _INTERPRETER.fullmatch(words[0]) else (words[0], words[1:])
    )
    _require_script(rest)
    return Script(interpreter, tuple(rest), _environment(container))


def main_container(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The container `trainer` of a pod template; empty when there is none."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    found = (c for c in containers if isinstance(c, Mapping) and c.get("name") == _MAIN_CONTAINER)
    return next(found, {})


def _words(container: Mapping[str, Any], key: str) -> list[str]:
    words = container.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(
            f"spec.template.spec.containers[trainer].{key}: must be a list of strings, got "
            f"{words!r}"
        )
    return words


def _require_script(words: list[str]) -> None:
    first = words[0] if words else ""
    name = first.rsplit("/", 1)[-1]
    if name in _LAUNCHERS:
        raise ValueError(
            f"{COMMAND_FIELD}: {name!r} starts ranks itself: give only the script, such as "
            "[python, train.py]; "
            "spec.launcher decides what starts it"
        )
    if first == "-m" and len(words) > 1:
        return
    if not first.endswith(".py"):
        raise ValueError(
            f"{COMMAND_FIELD}: {' '.join(words) or 'python alone'!r} names no Python script: write "
            "[python, train.py] "
            "or [python, -m, module], with the arguments behind it"
        )


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    entries = container.get("env") or []
    return {
        str(entry["name"]): str(entry["value"])
        for entry in entries
        if isinstance(entry, Mapping) and "value" in entry
    }
