"""The user's script: command and args of `spec.template.spec.containers[trainer]`, for every
launcher.

It must be a Python script, which is started once for each rank: `[python, train.py, --epochs, "5"]`
or `[python, -m, package.train]`. A command line of torchrun or of accelerate may stand before it. A
relative path is
relative to the container's `workingDir`. In a local run it is relative to the folder of the job's
file, so that one file serves both.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regroup_operator.api import accelerate_flags
from regroup_operator.api.command_advice import (
    INTERPRETER,
    SHELLS,
    command_of_line,
    line_of_shell,
    name,
    own_command,
    words_of_line,
)
from regroup_operator.api.launcher_flags import FlagError, LaunchFlags
from regroup_operator.api.torchrun_flags import read_torchrun
from regroup_trainer.protocol.message import listed, quote, shorten

_CONTAINER_FIELD = "spec.template.spec.containers[trainer]"
COMMAND_FIELD = f"{_CONTAINER_FIELD}.command"
_MAIN_CONTAINER = "trainer"
_MODULE_FLAG = re.compile(r"-[uq]*m(.*)", re.DOTALL)
_IDLE_FLAGS = re.compile(r"-[uq]+")
"""Of Python: the output of ranks is never held back, and no rank is interactive."""
LAUNCHERS = frozenset(
    {
        "deepspeed", "mpirun", "mpiexec", "srun", "horovod", "horovodrun", "ray", "composer",
        "colossalai", "lightning", "fabric",
    }
)  # fmt: skip
_LAUNCHER_MODULES = re.compile(
    r"deepspeed(?:\.launcher\.\w+)?|horovod\.run(?:ner)?|composer\.cli\.launcher|colossalai"
)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.elastic")
_OLD_TORCHRUN = "torch.distributed.launch"
_ENVIRONMENTS = frozenset(
    {"uv", "poetry", "conda", "mamba", "micromamba", "pipenv", "hatch", "pixi"}
)
"""Programs that choose an interpreter."""


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
    if launched := _read_launcher(name(first), words[1:]):
        return f"{first.removesuffix(name(first))}python", *launched
    if not INTERPRETER.fullmatch(first):
        _refuse_launcher(words)
        return "python", words, LaunchFlags()
    rest = _without_idle_flags(words[1:])
    if rest[:1] == ["-m"]:
        module = "".join(rest[1:2])
        if launched := _read_launcher(module, rest[2:]):
            return first, *launched
        if _LAUNCHER_MODULES.fullmatch(module):
            _refuse_launcher([module.partition(".")[0], *rest[2:]])
    return first, rest, LaunchFlags()


def _without_idle_flags(words: list[str]) -> list[str]:
    """What follows Python, with `-m` as a word of its own: Python also reads -mname and -um."""
    rest = list(itertools.dropwhile(_IDLE_FLAGS.fullmatch, words))
    found = _MODULE_FLAG.fullmatch(rest[0]) if rest else None
    if found is None:
        return rest
    return ["-m", *([found[1]] if found[1] else []), *rest[1:]]


def _read_launcher(program: str, words: list[str]) -> tuple[list[str], LaunchFlags] | None:
    """The script and the flags of a command line of torchrun or accelerate; None: it is neither.

    `program` is its name, or that of a module.
    """
    try:
        if program in ("torchrun", *_TORCHRUN_MODULES):
            flags, rest = read_torchrun(words)
        elif program in ("accelerate", accelerate_flags.MODULES[1]):
            if words[:1] != ["launch"]:
                command = shorten(" ".join(["accelerate", *words[:1]]))
                raise FlagError(
                    f"{command}: it starts no ranks: write [accelerate, launch, train.py]"
                )
            flags, rest = accelerate_flags.read_accelerate(words[1:])
        elif program in ("accelerate-launch", accelerate_flags.MODULES[0]):
            flags, rest = accelerate_flags.read_accelerate(words)
        elif program == _OLD_TORCHRUN:
            same = [word for word in words if word not in ("--use_env", "--use-env")]
            raise FlagError(
                f"{program} gives scripts an argument --local-rank, and torchrun has taken its "
                "place: read LOCAL_RANK of the environment, and write "
                f"{_shown(['torchrun', *same])}"
            )
        else:
            return None
    except FlagError as error:
        raise ValueError(f"{COMMAND_FIELD}: {error}") from None
    return rest, flags


def _refuse_launcher(words: list[str]) -> None:
    """Raises ValueError for what is no Python script: it says what to write instead."""
    first = words[0]
    if line := words_of_line(first):
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(first)!r} is a whole command line in one word: write "
            f"{_shown([*line, *words[1:]])}"
        )
    if name(first) in SHELLS:
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(' '.join(words))!r} is a line for a shell: "
            f"{_without_shell(words)}"
        )
    own = own_command(words[1:])
    shown = _shown(own if _is_supported(own) else ["python", "train.py"])
    if name(first) in LAUNCHERS:
        raise ValueError(
            f"{COMMAND_FIELD}: {name(first)!r} starts ranks itself, which spec.launcher does here: "
            f"write {shown}"
        )
    if own and not first.endswith(".py") and not first.startswith("-"):
        where = (
            ", with the path of that environment's python" if name(first) in _ENVIRONMENTS else ""
        )
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(first)!r} starts another program, and here the command is "
            f"what each rank runs: write {shown}{where}"
        )


def _without_shell(words: list[str]) -> str:
    general = "write the command as a list, such as [python, train.py]"
    elsewhere = "variables in env, and other steps in an init container"
    command, has_more = command_of_line(line_of_shell(words))
    if _is_supported(command):
        return f"write {_shown(command)}" + (f", {elsewhere}" if has_more else "")
    return f"{general}, {elsewhere}" if has_more else general


def _is_supported(command: list[str]) -> bool:
    try:
        _require_script(_split(command)[1])
    except (ValueError, IndexError):
        return False
    return True


def _shown(words: list[str]) -> str:
    return f"[{listed(words)}]"


def main_container(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The container `trainer` of a pod template; empty when there is none. Raises ValueError for a
    template that is no object of lists and objects, or has two such containers.
    """
    spec = (template or {}).get("spec")
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec.template.spec: must be an object, got {quote(spec)}")
    containers = _list(spec, "containers", "spec.template.spec")
    found = [c for c in containers if isinstance(c, Mapping) and c.get("name") == _MAIN_CONTAINER]
    if len(found) > 1:
        raise ValueError(
            f"spec.template.spec.containers: {len(found)} are named {_MAIN_CONTAINER}: give the "
            "others names of their own"
        )
    container = found[0] if found else {}
    _require_objects(container)
    return container


def misnamed_container(template: Mapping[str, Any] | None) -> str:
    """What to say of a container with a command, where `user_script` found no container `trainer`;
    empty when there is none.
    """
    if main_container(template):
        return ""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    names = [c.get("name") for c in containers if isinstance(c, Mapping) and c.get("command")]
    known = next((name for name in names if isinstance(name, str)), "")
    return f" (a container {quote(known)} has one: name it {_MAIN_CONTAINER})" if known else ""


def _require_objects(container: Mapping[str, Any]) -> None:
    """Raises ValueError for resources or limits that are no objects."""
    field, value = f"{_CONTAINER_FIELD}.resources", container.get("resources")
    if isinstance(value, Mapping):
        field, value = f"{field}.limits", value.get("limits")
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{field}: must be an object, got {quote(value)}")


def _list(given: Mapping[str, Any], key: str, field: str, of: str = "") -> list[Any]:
    """A list of a template; empty where it has none. Raises ValueError, which names the field."""
    value = given.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{field}.{key}: must be a list{of}, got {quote(value)}")
    return value


def _words(container: Mapping[str, Any], key: str) -> list[str]:
    field, given = f"{_CONTAINER_FIELD}.{key}", container.get(key)
    if isinstance(given, str):
        raise ValueError(f"{field}: must be a list of strings, got {quote(given)}{_as_list(given)}")
    words = _list(container, key, _CONTAINER_FIELD, " of strings")
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise ValueError(
                f"{field}: must be a list of strings, got {quote(word)} at [{place}]: write it in "
                "quotation marks"
            )
        _require_text(word, f"{field}[{place}]")
    return words


def _as_list(line: str) -> str:
    """What to write instead of a command line that is one string."""
    try:
        words = shlex.split(line)
    except ValueError:
        return ""
    return f": write {_shown(words)}" if words else ""


def _require_text(text: str, field: str) -> None:
    """Raises ValueError for what no process can get as an argument or a variable."""
    if "\0" in text:
        raise ValueError(f"{field}: {quote(text)} holds a NUL character: remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(
            f"{field}: {quote(text)} holds half of a character (a lone surrogate): write the whole "
            "character"
        )


def _require_script(words: list[str]) -> None:
    first = words[0] if words else ""
    if first == "-m":
        _require_module(words[1:2])
        return
    if first == "-" or first.startswith("-c"):
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(first)} of Python names no file that each rank could run: "
            "write the program into a script: [python, train.py]"
        )
    if first.startswith("-"):
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(first)} of Python is not supported, since ranks are forks "
            "of a running interpreter: leave it out, or set the environment variable that does the "
            "same"
        )
    if not first.endswith(".py"):
        raise ValueError(
            f"{COMMAND_FIELD}: {shorten(' '.join(words)) or 'python alone'!r} names no Python "
            "script: write [python, train.py] or [python, -m, module], with the arguments behind it"
            f"{_main_of_folder(words)}"
        )


def _main_of_folder(words: list[str]) -> str:
    """`python folder` runs its __main__.py."""
    first = words[0].rstrip("/") if words else ""
    return f"; for a folder: [python, {shorten(first)}/__main__.py]" if first else ""


def _require_module(named: list[str]) -> None:
    if not named or not named[0].strip() or named[0].startswith("-"):
        given = f"{quote(named[0])} is none" if named else "it is missing"
        raise ValueError(
            f"{COMMAND_FIELD}: -m needs the name of a module, and {given}: write "
            "[python, -m, package.train]"
        )


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    entries = _list(container, "env", _CONTAINER_FIELD, " of names and values")
    found = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, Mapping) and entry.get("name") and entry.get("value") is not None:
            name, value = _plain(entry, "name", place), _plain(entry, "value", place)
            if "=" in name:
                raise ValueError(
                    f"{_CONTAINER_FIELD}.env[{place}].name: {quote(name)} holds '=': write what "
                    "follows it in value"
                )
            found[name] = value
    return found


def _plain(entry: Mapping[str, Any], key: str, place: int) -> str:
    """A name or value as text. Raises ValueError, which names the field."""
    field, value = f"{_CONTAINER_FIELD}.env[{place}].{key}", entry[key]
    if not isinstance(value, str | int | float):
        raise ValueError(f"{field}: must be a string, got {quote(value)}")
    text = value if isinstance(value, str) else quote(value)
    _require_text(text, field)
    return text
