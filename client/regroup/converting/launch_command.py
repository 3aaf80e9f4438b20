"""A command line that starts ranks, as what a TrainingJob runs: the script, and the numbers that
the launcher's flags say. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from posixpath import normpath
from typing import Literal

from regroup.converting.inline_code import CODE_FOLDER, PROGRAM
from regroup.converting.pod_template import is_of_ranks
from regroup.converting.shell_text import KEYWORDS, LOOPS, Command, ShellText, is_plain
from regroup.converting.source import Row, left_out
from regroup.converting.written_script import require_not_written, written_files
from regroup_operator.api.accelerate_flags import ACCELERATE, MODULES
from regroup_operator.api.command_advice import (
    INTERPRETER,
    SHELLS,
    STARTERS,
    line_and_arguments,
    line_of_shell,
    name,
    own_command,
)
from regroup_operator.api.launcher_flags import FlagError, FlagTable, FoundFlag, LaunchFlags
from regroup_operator.api.torchrun_flags import TORCHRUN
from regroup_operator.api.user_script import COMMAND_FIELD, LAUNCHERS, Script, user_script
from regroup_trainer.protocol.message import shorten

Starter = Literal["python", "torchrun", "accelerate"]
_TORCHRUN_MODULES = (
    "torch.distributed.run", "torch.distributed.elastic", "torch.distributed.launch",
)  # fmt: skip
_OLD = "torch.distributed.launch"
_TOOLS = {("-m", "pip"), ("-m", "venv"), ("-m", "ensurepip")}
_STOCK = "only launcher torchrun supports it"
_ELSEWHERE = "another step: put it into the image or an init container"
_INPUT = "ranks read no input: give the script the file's name"
_OUTPUT = "what ranks write is in the pod's log"
_SETS_UP = "the image has to bring what it sets up"
_UNKNOWN = "its value is not known here"
_PATTERN = re.compile(
    r"""~(?:/[^$`]*)?  |  [^$`]*\*[^$`]*  |  [^$`]*\{[^{}\s"':]*,[^{}\s"':]*\}[^$`]*""", re.VERBOSE
)
"""Names of files that a shell completes, and lists that it writes out."""
_OF_KUBERNETES = re.compile(r"[^$`]*(?:\$\([A-Za-z_][\w.-]*\)[^$`]*)*")


@dataclass(frozen=True)
class Launch:
    """What a command line starts."""

    command: tuple[str, ...]
    """A script for each rank, with its interpreter; or a command of accelerate."""
    starter: Starter
    """What starts several ranks of a worker; python: nothing."""
    flags: LaunchFlags = field(default_factory=LaunchFlags)
    variables: Mapping[str, str] = field(default_factory=dict)
    working_directory: str | None = None
    left: tuple[str, ...] = ()
    """Sentences about what was left out."""
    code: str | None = None
    """Of the script, where the command line writes it before it starts it."""


def read_launch(
    words: Sequence[str], known: Mapping[str, str] | None = None, in_shell: bool = False
) -> Launch:
    """Read the command of a container, or of a line of a script: then `known` has its variables.
    Raises ValueError, which says what cannot be taken.
    """
    if words and name(words[0]) in SHELLS:
        return _of_shell(words, known or {})
    return _of_words(list(words), in_shell, known)


def _of_shell(words: Sequence[str], known: Mapping[str, str]) -> Launch:
    found, line = line_and_arguments(words), line_of_shell(words)
    if not words[1:2] or not (found or name(words[0]) == "env"):
        raise ValueError(
            f"{shorten(line or words[0])!r} is a script for a shell, which is not in the file"
        )
    if behind := shlex.join(found[1:]):
        raise ValueError(f"{shorten(behind)} stands behind the line for a shell: write it into it")
    text = ShellText(line, known)
    chosen = choose(text)
    read = partial(_of_words, in_shell=True, known=text.variables)
    launch, steps = read_chosen(text, chosen, chosen.words, read)
    variables, left = surroundings(text, chosen, steps)
    return replace(
        launch,
        variables={**variables, **launch.variables},
        working_directory=folder_of(text, chosen),
        left=(*(sentence for _, sentence in left), *launch.left),
    )


def read_chosen(
    text: ShellText, chosen: Command, words: Sequence[str], read: Callable[[list[str]], Launch]
) -> tuple[Launch, tuple[Command, ...]]:
    """Read these words of the command that starts the ranks; and the steps before it that write
    what it starts. Raises ValueError.
    """
    files = written_files(text.commands[: text.commands.index(chosen)])
    marks = {path: f"{CODE_FOLDER}/{number}.py" for number, path in enumerate(files)}
    marked = [marks.get(normpath(word), word) for word in words]
    named = _file_of(read(marked)) if files else ""
    file = next((files[path] for path, mark in marks.items() if mark == named), None)
    if file is None:
        require_not_written(named, files)
        return read(list(words)), ()
    program = f"{CODE_FOLDER}/{PROGRAM}"
    own = [program if normpath(word) == file.path else word for word in words]
    return replace(read(own), code=file.code()), file.steps


def _file_of(launch: Launch) -> str:
    """The file that the ranks run."""
    named, *rest = _script(launch.command).arguments
    return f"{rest[0].replace('.', '/')}.py" if named == "-m" else named


def choose(text: ShellText) -> Command:
    """The command that starts the ranks. Raises ValueError where there is none, or several."""
    for fits in (_starts_many, _starts_script, _starts_python, line_and_arguments):
        found = [command for command in text.commands if command.words and fits(command.words)]
        if len(found) > 1:
            lines = " and ".join(shorten(command.text) for command in found[:3])
            raise ValueError(f"{lines} both start a program: keep one of them")
        if found:
            _require_once(text, found[0])
            return found[0]
    raise ValueError("no command starts a Python script: give torchrun, srun or python")


def _require_once(text: ShellText, chosen: Command) -> None:
    """Raises ValueError for a command in a loop."""
    loops: list[str] = []
    for command in text.commands:
        if command is chosen:
            break
        if command.words[:1] and command.words[0] in LOOPS:
            loops.append(command.text)
        elif command.words[:1] == ("done",):
            del loops[-1:]
    if loops:
        raise ValueError(
            f"{shorten(loops[0])} starts {shorten(chosen.text)} several times: a job is one run: "
            "give each a job of its own"
        )


def _starts_many(words: Sequence[str]) -> bool:
    return name(words[0]) in STARTERS | LAUNCHERS or bool(_module_of(words))


def _starts_script(words: Sequence[str]) -> bool:
    own = list(words) if INTERPRETER.fullmatch(words[0]) else own_command(words)
    if name(words[0]) in KEYWORDS or not own or tuple(own[1:3]) in _TOOLS:
        return False
    try:
        _script(own)
    except ValueError:
        return False
    return True


def _starts_python(words: Sequence[str]) -> bool:
    return INTERPRETER.fullmatch(words[0]) is not None


def _module_of(words: Sequence[str]) -> str:
    """The launcher's module that Python is asked to run; empty: none."""
    rest = list(words[1:]) if words and INTERPRETER.fullmatch(words[0]) else []
    while rest and rest[0] in ("-u", "-q"):
        rest.pop(0)
    module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else ""
    return module if module in (*_TORCHRUN_MODULES, *MODULES) else ""


def folder_of(text: ShellText, chosen: Command) -> str | None:
    """The folder that the script changed to before the command."""
    change = _change_before(text, chosen)
    return change.words[1] if change else None


def _change_before(text: ShellText, chosen: Command) -> Command | None:
    """The command that decides in which folder another one runs."""
    before = text.commands[: text.commands.index(chosen)]
    return next((command for command in reversed(before) if _is_change(command.words)), None)


def _is_change(words: Sequence[str]) -> bool:
    return len(words) == 2 and words[0] == "cd" and words[1][:1] == "/" and is_plain(words[1])


def surroundings(
    text: ShellText, chosen: Command, taken: Sequence[Command] = ()
) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """The variables that the script gives to a command, and what is left out of it, by line.
    `taken`: steps that are not left out.
    """
    found: dict[str, str] = {}
    left: list[tuple[int, str]] = []
    change = _change_before(text, chosen)
    for command in text.commands:
        sentences = [*_of_assignments(text, command, chosen, found)]
        if command is not change and command not in taken:
            sentences += _of_step(command, chosen)
        left += [(command.line, sentence) for sentence in sentences]
    return found, left


def _of_assignments(
    text: ShellText, command: Command, chosen: Command, found: dict[str, str]
) -> Iterator[str]:
    """What is left out of the variables of a command; the others go to `found`."""
    for key, value in command.assignments.items():
        written = f"{key}={value}"
        if command is not chosen and not command.exports:
            if key not in text.used and not command.words:
                yield left_out(written, "no program sees it, since it is not exported")
        elif is_of_ranks(key):
            yield left_out(written, "the job sets it for each rank")
        elif is_plain(value):
            found[key] = value
        elif key not in text.used:
            yield left_out(written, _UNKNOWN)


def _of_step(command: Command, chosen: Command) -> Iterator[str]:
    if command.words and command is not chosen:
        yield left_out(command.text, _ELSEWHERE)
    elif command.redirected:
        is_read = command.redirected[0].startswith("<")
        yield left_out(" ".join(command.redirected), _INPUT if is_read else _OUTPUT)


def _of_words(
    words: list[str], in_shell: bool = False, known: Mapping[str, str] | None = None
) -> Launch:
    if place := _place_of_shell(words):
        launch = _of_shell(words[place:], known or {})
        return replace(launch, left=(left_out(" ".join(words[:place]), _SETS_UP), *launch.left))
    words, left = _without_wrapper(words)
    table, prefix, rest = _launcher(words)
    if table is None:
        script = _script(words)
        command = (script.interpreter, *script.arguments)
        _require_known(script, in_shell)
        return Launch(command, "python", left=(*left, *_open_words(command, in_shell)))
    if _OLD in words:
        left.append(left_out("--local-rank", "read LOCAL_RANK of the environment"))
    try:
        found, refused, rest = table.sift(rest)
    except FlagError as error:
        raise ValueError(str(error)) from None
    kept, dropped = _sorted_flags(table, found, refused)
    launch = _launch_of(table, prefix, kept, rest, any(f.name == "no-python" for f in found))
    more = _open_words(launch.command, in_shell)
    return replace(launch, left=(*left, *dropped, *more))


def _launch_of(
    table: FlagTable, prefix: list[str], kept: list[FoundFlag], rest: list[str], is_command: bool
) -> Launch:
    """`is_command`: whether the rest is a command, and not a script for Python."""
    written = [flag.written for flag in kept]
    flags = _script([*prefix, *written, "script.py"]).flags
    if table is ACCELERATE:
        fields = ("num_processes", "num_machines", "restarts")
        options = [flag.written for flag in kept if table.flags[flag.name].kind not in fields]
        command = [*prefix, *options, *rest]
        _script(command)
        return Launch(tuple(command), "accelerate", flags)
    script = _script(rest if is_command else [*prefix, *written, *rest])
    _require_known(script, True)
    variables = {} if flags.role == LaunchFlags.role else {"ROLE_NAME": flags.role}
    return Launch((script.interpreter, *script.arguments), "torchrun", flags, variables)


def _script(words: Sequence[str]) -> Script:
    """What a rank runs. Raises ValueError as for a TrainingJob with this command."""
    template = {"spec": {"containers": [{"name": "trainer", "command": list(words)}]}}
    try:
        script = user_script(template)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{COMMAND_FIELD}: ")) from None
    if script is None:
        raise ValueError("the command is empty: give what the image starts")
    return script


def _require_known(script: Script, in_shell: bool) -> None:
    """Raises ValueError where the name of the script is the value of an unknown variable."""
    named = script.arguments[1] if script.arguments[0] == "-m" else script.arguments[0]
    if in_shell and not is_plain(named):
        raise ValueError(f"{shorten(named)}: the script has a variable in its name that is not set")


def _place_of_shell(words: Sequence[str]) -> int | None:
    """Where a shell is asked to read a line, in front of all that could start ranks."""
    for place, word in enumerate(words):
        if name(word) in SHELLS and line_and_arguments(words[place:]):
            return place
        if INTERPRETER.fullmatch(word) or name(word) in STARTERS | LAUNCHERS or ".py" in word:
            return None
    return None


def _without_wrapper(words: list[str]) -> tuple[list[str], list[str]]:
    """The command behind a program such as `uv run`, and what is to be reported of that."""
    first = words[0] if words else ""
    known = STARTERS | LAUNCHERS | SHELLS
    if INTERPRETER.fullmatch(first) or name(first) in known or first.endswith(".py"):
        return words, []
    own = own_command(words[1:])
    if not own:
        return words, []
    given = len(own) if words[-len(own) :] == own else len(own) - 1  # Python was not named
    starter = words[len(words) - given - 1]
    if given < len(own) and not is_plain(starter):
        raise ValueError(f"{shorten(starter)} starts {shorten(own[1])}, and {_UNKNOWN}: write it")
    before = " ".join(words[: len(words) - given])
    return own, [left_out(before, _SETS_UP)]


def _launcher(words: list[str]) -> tuple[FlagTable | None, list[str], list[str]]:
    """The flags of the launcher, the words that start it, and what follows them."""
    first, module = name(words[0]) if words else "", _module_of(words)
    if module:
        place = words.index(module) + 1
        prefix = [_TORCHRUN_MODULES[0] if word == _OLD else word for word in words[:place]]
        is_accelerate = module in MODULES
        rest = [w for w in words[place:] if module != _OLD or w.replace("_", "-") != "--use-env"]
        if module == MODULES[1]:
            prefix, rest = [*prefix, *rest[:1]], rest[1:]
        return (ACCELERATE if is_accelerate else TORCHRUN), prefix, rest
    if first == "torchrun":
        return TORCHRUN, words[:1], words[1:]
    if first == "accelerate-launch" or (first == "accelerate" and words[1:2] == ["launch"]):
        length = 1 if first == "accelerate-launch" else 2
        return ACCELERATE, words[:length], words[length:]
    return None, [], words


def _sorted_flags(
    table: FlagTable, found: Sequence[FoundFlag], refused: Mapping[str, str]
) -> tuple[list[FoundFlag], list[str]]:
    """The flags that are applied, and sentences about the others."""
    kept: list[FoundFlag] = []
    dropped: list[str] = []
    for flag in found:
        kind = table.flags[flag.name].kind
        if flag.name == "no-python":
            continue
        if why := refused.get(flag.written) or _why_not(kind, flag):
            dropped.append(left_out(flag.written, why))
        else:
            kept.append(flag)
    return kept, dropped


def _why_not(kind: str, flag: FoundFlag) -> str:
    if kind in ("stock", "output"):
        return _STOCK
    if not is_plain(flag.value):
        return _UNKNOWN
    if kind == "ranks" and flag.value not in ("auto", "gpu") and not flag.value.isdigit():
        return "give nprocPerNode: auto is one rank for each GPU"
    return ""


def _open_words(words: Sequence[str], in_shell: bool) -> list[str]:
    """Sentences about words that a shell would have replaced. `$(NAME)` is replaced by
    Kubernetes.
    """
    unknown = [
        f"{shorten(word)} goes to the script as it is: {_UNKNOWN}"
        for word in words
        if not is_plain(word) and (in_shell or not _OF_KUBERNETES.fullmatch(word))
    ]
    patterns = [word for word in words if in_shell and _PATTERN.fullmatch(word)]
    return [
        *unknown,
        *(
            f"{shorten(word)} goes to the script as it is: no shell replaces it"
            for word in patterns
        ),
    ]


_TARGETS = {
    "ranks": "spec.nprocPerNode",
    "nodes": "spec.replicas",
    "restarts": "spec.restartPolicy.maxRestarts",
    "role": "spec.template.spec.containers[trainer].env",
    "module": "spec.template.spec.containers[trainer].command",
    "same": "spec.template.spec.containers[trainer].command",
}
_TEXTS = {
    "ranks": "absent: 1, as torchrun has it",
    "nodes": "a range: spec.elasticPolicy too",
    "same": "a job does so anyway",
}


def _row(flag: str, kind: str, instead: str) -> Row:
    if flag == "no-python":
        return Row(f"--{flag}", _TARGETS["module"], "what follows must be a Python script")
    why = _STOCK if kind in ("stock", "output") else instead
    target = _TARGETS.get(kind, "")
    return Row(f"--{flag}", target, _TEXTS.get(kind, "") if target else why)


TORCHRUN_ROWS = tuple(_row(name, flag.kind, flag.instead) for name, flag in TORCHRUN.flags.items())
"""What becomes of the flags of torchrun."""
