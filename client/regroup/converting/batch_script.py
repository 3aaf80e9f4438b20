"""A script for sbatch, or one command line of torchrun, accelerate, srun or python. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from regroup.converting.draft import ConvertOptions, Draft, job_name
from regroup.converting.launch_command import (
    Launch,
    choose,
    folder_of,
    read_chosen,
    read_launch,
    surroundings,
)
from regroup.converting.pod_template import bare_pod
from regroup.converting.shell_text import Command, ShellText
from regroup.converting.slurm_options import Allocation, allocation, read_options
from regroup.converting.source import Note, Refusal, left_out
from regroup.converting.workers import Ranks, Report, Size, put_size
from regroup_operator.api.command_advice import name
from regroup_operator.api.launcher_flags import FlagError, FoundFlag

_DIRECTIVE = "#SBATCH"
_COMPONENTS = (["hetjob"], ["packjob"])
_SCRIPT = (
    "spec.image: the script has to be in the image, or in a volume (without an image, the job has "
    "Regroup's own)"
)


class Text(NamedTuple):
    """A script or a command line."""

    content: str
    kind: str
    """As messages call it."""


@dataclass
class _Reading:
    """What was read of a text so far."""

    options: dict[str, FoundFlag] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def report(self, line: int, sentences: Sequence[str]) -> None:
        self.notes += [Note((), sentence, line=line) for sentence in sentences]


def convert(text: Text, options: ConvertOptions) -> tuple[Draft, list[Note]]:
    """The TrainingJob of a text, and what is left out of it. Raises Refusal."""
    reading = _Reading()
    try:
        return _convert(text, options, reading), reading.notes
    except ValueError as error:
        raise Refusal((text.kind,), str(error)) from None


def _convert(text: Text, options: ConvertOptions, reading: _Reading) -> Draft:
    _read_directives(text.content, reading)
    asked, left = allocation(reading.options)
    script = ShellText(text.content, asked.variables)
    chosen = choose(script)
    asked, words = _with_srun(asked, left, chosen, reading)
    reading.report(chosen.line, left)
    read = partial(read_launch, known={**script.variables, **asked.variables}, in_shell=True)
    launch, steps = read_chosen(script, chosen, words, read)
    variables, others = surroundings(script, chosen, steps)
    for line, sentence in others:
        reading.report(line, [sentence])
    folder = launch.working_directory or folder_of(script, chosen) or asked.folder
    launch = replace(
        launch,
        variables={**variables, **launch.variables},
        working_directory=folder,
    )
    reading.report(chosen.line, launch.left)
    return _draft(asked, launch, options, lambda sentence: reading.report(chosen.line, [sentence]))


def _read_directives(text: str, reading: _Reading) -> None:
    """Read the lines of sbatch, which stand in front of the first command."""
    is_read = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_DIRECTIVE):
            written = line.removeprefix(_DIRECTIVE).strip()
            if is_read:
                _read_directive(number, written, reading)
            else:
                sentence = left_out(written, "it stands behind a command, where sbatch ends")
                reading.report(number, [sentence])
        elif line.strip() and not line.lstrip().startswith("#"):
            is_read = False


def _read_directive(number: int, written: str, reading: _Reading) -> None:
    try:
        left, rest = read_options(shlex.split(written, comments=True), reading.options)
    except ValueError as error:
        subject, _, why = str(error).partition(": ")
        left, rest = [left_out(written, why or subject)], []
    if rest in _COMPONENTS:
        raise ValueError(
            f"{rest[0]}: a job has workers of one kind: give each component a job of its own"
        )
    reading.report(number, [*left, *(left_out(word, "it is no option") for word in rest)])


def _with_srun(
    asked: Allocation, left: list[str], chosen: Command, reading: _Reading
) -> tuple[Allocation, list[str]]:
    """What srun asks for beside sbatch, and the words behind it; `left` is added to."""
    words = list(chosen.words)
    if name(words[0]) != "srun":
        return asked, words
    options = dict(reading.options)
    try:
        others, rest = read_options(words[1:], options)
    except FlagError as error:
        raise ValueError(str(error)) from None
    if not rest:
        raise ValueError("srun starts nothing: give the command behind its options")
    if ":" in rest:
        raise ValueError(
            "srun starts several programs, with : between them: a job is one program: give each "
            "a job of its own"
        )
    asked, left[:] = allocation(options)
    left += others
    return asked, rest


def _draft(asked: Allocation, launch: Launch, options: ConvertOptions, report: Report) -> Draft:
    draft, pod = Draft(), bare_pod()
    script = next((w for w in launch.command[1:] if w.endswith(".py")), launch.command[-1])
    draft.metadata["name"] = options.name or job_name(asked.name or PurePath(script).stem)
    draft.put("activeDeadlineSeconds", asked.seconds)
    if asked.gpus_per_node is None and (asked.gpus or 0) % asked.workers:
        why = f"no multiple of {asked.workers} nodes: each has {asked.gpus_of_node}"
        report(left_out(f"--gpus={asked.gpus}", why))
    pod.image, pod.resources = asked.image, dict(asked.resources)
    pod.variables, pod.working_directory = dict(launch.variables), launch.working_directory
    pod.code = launch.code
    put_size(draft, _size(asked, launch, report), launch, pod, report)
    pod.put(draft, launch.command)
    if launch.code is None:
        draft.checks.append(_SCRIPT)
    return draft


def _size(asked: Allocation, launch: Launch, report: Report) -> Size:
    """Workers are nodes. Tasks of a node are ranks, but where torchrun starts the ranks."""
    nodes = asked.nodes
    flagged = launch.flags.nodes
    if nodes is None and asked.tasks is None:
        bounds = flagged if flagged and flagged[0] != flagged[1] else None
        workers = flagged[1] if flagged else launch.flags.machines or 1
        return Size(workers, bounds, _ranks(launch))
    tasks = asked.ranks
    if launch.starter != "python" and (tasks or 1) > 1:
        report(left_out(f"{tasks} tasks of a node", "torchrun starts the ranks"))
    bounds = nodes if nodes and nodes[0] != nodes[1] else None
    if launch.starter == "python" and tasks is None and asked.tasks is not None:
        report(left_out(f"--ntasks={asked.tasks}", f"no multiple of {asked.workers} nodes"))
    return Size(asked.workers, bounds, tasks if launch.starter == "python" else _ranks(launch))


def _ranks(launch: Launch) -> Ranks | None:
    """What torchrun takes where its command does not say it."""
    if launch.starter != "torchrun" or launch.flags.ranks is not None:
        return None
    says_it = any(sentence.startswith("--nproc") for sentence in launch.left)
    return "auto" if says_it else 1  # a word that is not known here, or torchrun's default
