"""The user's script: command and args of `spec.template.spec.containers[trainer]`, for every
launcher.

It must be a Python script, which is started once for each rank: `[python, train.py, --epochs, "5"]`
or `[python, -m, package.train]`. A command line of torchrun or of accelerate may stand before it. A
relative path is
relative to the container's `workingDir`. In a local run it is relative to the folder of the job's
file, so that one file serves both.
"""

from __future__ import annotations

import re
import reprlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regroup_operator.api import accelerate_flags
from regroup_operator.api.launcher_flags import FlagError, LaunchFlags
from regroup_operator.api.torchrun_flags import read_torchrun

COMMAND_FIELD = "spec.template.spec.containers[trainer].command"
_MAIN_CONTAINER = "trainer"
_INTERPRETER = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_LAUNCHERS = frozenset(
    {
        "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "ray", "composer", "colossalai",
        "lightning",
    }
)  # fmt: skip
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.elastic")
_SHELL_SYNTAX = re.compile(r"[;&|<>$`(){}*?\n]|(?:^|\s)\w+=")


@dataclass(frozen=True)
class Script:
    """What a rank runs."""

    interpreter: str
    """Python of the image, a name or a path."""
    arguments: tuple[str, ...]
    """Path of a script and its arguments, or `-m`, a module and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Plain values of the container's `env`, which a local run can honour."""
    flags: LaunchFlags = field(default_factory=LaunchFlags)
    """What a command of torchrun or accelerate says beside the script."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the ranks that follow from the flags."""
        is_default = self.flags.role == LaunchFlags.role
        return {**({} if is_default else {"ROLE_NAME": self.flags.role}), **self.flags.variables}


def user_script(template: Mapping[str, Any] | None) -> Script | None:
    """The script of a pod template; None when the template has no command. Raises ValueError, which
    names the field.
    """
    container = main_container(template)
    words = [*_words(container, "command"), *_words(container, "args")]
    if not words:
        return None
    interpreter, rest, flags = _split(words)
    _require_script(rest)
    return Script(interpreter, tuple(rest), _environment(container), flags)


def _split(words: list[str]) -> tuple[str, list[str], LaunchFlags]:
    """The interpreter, the script with its arguments, and the flags of its launcher."""
    first = words[0]
    if launched := _read_launcher(_name(first), words[1:]):
        return f"{first.removesuffix(_name(first))}python", *launched
    if not _INTERPRETER.fullmatch(first):
        _refuse_launcher(words)
        return "python", words, LaunchFlags()
    rest = words[1:]
    while rest[:1] == ["-u"]:  # the output of ranks is never held back
        rest = rest[1:]
    if rest[:1] == ["-m"] and (launched := _read_launcher("".join(rest[1:2]), rest[2:])):
        return first, *launched
    return first, rest, LaunchFlags()


def _read_launcher(name: str, words: list[str]) -> tuple[list[str], LaunchFlags] | None:
    """The script and the flags of a command line of torchrun or accelerate; None: it is neither.

    `name` is that of a program or a module.
    """
    try:
        if name in ("torchrun", *_TORCHRUN_MODULES):
            flags, rest = read_torchrun(words)
        elif name in ("accelerate", accelerate_flags.MODULES[1]):
            if words[:1] != ["launch"]:
                raise FlagError(
                    f"{' '.join(['accelerate', *words[:1]])}: it starts no ranks: write "
                    "[accelerate, launch, train.py]"
                )
            flags, rest = accelerate_flags.read_accelerate(words[1:])
        elif name in ("accelerate-launch", accelerate_flags.MODULES[0]):
            flags, rest = accelerate_flags.read_accelerate(words)
        else:
            return None
    except FlagError as error:
        raise ValueError(f"{COMMAND_FIELD}: {error}") from None
    return rest, flags


def _refuse_launcher(words: list[str]) -> None:
    """Raises ValueError for a shell and for launchers that cannot be obeyed."""
    name = _name(words[0])
    if name in _SHELLS or name == "env":
        raise ValueError(
            f"{COMMAND_FIELD}: {' '.join(words)!r} is a line for a shell: {_without_shell(words)}"
        )
    if name in _LAUNCHERS:
        raise ValueError(
            f"{COMMAND_FIELD}: {name!r} starts ranks itself, which spec.launcher does here: write "
            f"{_shown(_script_in(words))}"
        )


def _without_shell(words: list[str]) -> str:
    line = words[-1] if words[1:2] == ["-c"] and len(words) == 3 else " ".join(words[1:])
    if not line or _SHELL_SYNTAX.search(line):
        return (
            "write the command as a list, such as [python, train.py], variables in env, and other "
            "steps in an init container"
        )
    try:
        command = shlex.split(line)
        _require_script(_split(command)[1])
    except (ValueError, IndexError):
        return "write the command as a list, such as [python, train.py]"
    return f"write {_shown(command)}"


def _script_in(words: list[str]) -> list[str]:
    """The Python command in a launcher's command line, if there is one."""
    found = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    return ["python", "train.py"] if found is None else ["python", *words[found:]]


def _shown(words: list[str]) -> str:
    return f"[{', '.join(words)}]"


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def main_container(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The container `trainer` of a pod template; empty when there is none. Raises ValueError for a
    template that is no object of lists and objects.
    """
    spec = (template or {}).get("spec") or {}
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec.template.spec: must be an object, got {reprlib.repr(spec)}")
    containers = spec.get("containers") or []
    if not isinstance(containers, list):
        raise ValueError(
            f"spec.template.spec.containers: must be a list, got {reprlib.repr(containers)}"
        )
    found = (c for c in containers if isinstance(c, Mapping) and c.get("name") == _MAIN_CONTAINER)
    return next(found, {})


def _words(container: Mapping[str, Any], key: str) -> list[str]:
    words = container.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(
            f"spec.template.spec.containers[trainer].{key}: must be a list of strings, got "
            f"{reprlib.repr(words)}"
        )
    return words


def _require_script(words: list[str]) -> None:
    first = words[0] if words else ""
    if first == "-m" and len(words) > 1:
        return
    if first.startswith("-"):
        raise ValueError(
            f"{COMMAND_FIELD}: {first} of Python cannot be obeyed, since ranks are forks of a "
            "running interpreter: leave it out, or set the environment variable that does the same"
        )
    if not first.endswith(".py"):
        raise ValueError(
            f"{COMMAND_FIELD}: {' '.join(words) or 'python alone'!r} names no Python script: write "
            "[python, train.py] "
            "or [python, -m, module], with the arguments behind it"
        )


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    entries = container.get("env") or []
    if not isinstance(entries, list):
        raise ValueError(
            "spec.template.spec.containers[trainer].env: must be a list of names and values, got "
            f"{reprlib.repr(entries)}"
        )
    return {
        str(entry["name"]): str(entry["value"])
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("name") and entry.get("value") is not None
    }
