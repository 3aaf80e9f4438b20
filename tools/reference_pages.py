"""Writes what of `docs/reference` follows from the code: each field of a TrainingJob, each command
with its options, each reason why a job waits, and the series that programs export.

    python -m tools.reference_pages            writes them
    python -m tools.reference_pages --check    fails when one is not what would be written
"""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from regroup.cli.command_line import main as regroup
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.kubernetes.advice import HEALS, WHILE_TRAINING, WHILE_WAITING
from regroup_operator.api.crd import (
    FIXED,
    FIXED_UNLESS_SUSPENDED,
    FIXED_WHILE_RESUMING,
    Schema,
    resolved,
)
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.status import TrainingJobStatus
from regroup_trainer.checkpoint.commands import main as checkpoint
from tests.support import expositions
from tests.support.expositions import Program, Series

PAGES = Path(__file__).resolve().parents[1] / "docs/reference"
WIDTH = 100
LARGEST = 2**31 - 1
"""A bound that only keeps numbers in 32 bits is not worth a word."""
ELSEWHERE: dict[str, click.Command] = {"checkpoint": checkpoint}
"""Commands of `regroup` that run in another process, which knows their options."""
_NOTE = "<!-- Written by `python -m tools.reference_pages`. -->"


def pages() -> dict[str, str]:
    """Name of a page -> its content."""
    return {
        "trainingjob.md": job_page(),
        "commands.md": command_page(),
        "reasons.md": reason_page(),
        "metrics.md": metric_page(),
    }


# --- the fields of a TrainingJob ------------------------------------------------------------------


def job_page() -> str:
    """All fields of spec and status."""
    spec = TrainingJobSpec.model_json_schema(by_alias=True)
    status = TrainingJobStatus.model_json_schema(by_alias=True, mode="serialization")
    lines = [
        "# TrainingJob",
        "",
        _NOTE,
        "",
        *_wrapped(
            "All fields of `apiVersion: regroup.dev/v1alpha1`, `kind: TrainingJob` (short name "
            "`tj`), from the models that read them. `kubectl explain trainingjob.spec` prints the "
            "same texts. `regroup validate FILE` checks a file, and names the field and the value "
            "that are wrong."
        ),
        "",
        *_changes(),
        *_object("spec", spec, spec.get("$defs", {})),
        *_object("status", status, status.get("$defs", {})),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _changes() -> Iterator[str]:
    yield from ("## What may change", "")
    yield from _wrapped("A field that is not named here may change at any time.")
    yield ""
    for text, fields in (
        ("never", tuple(FIXED)),
        ("only while the job is suspended", FIXED_UNLESS_SUSPENDED),
        ("only together with `resume.policy: Never`", FIXED_WHILE_RESUMING),
    ):
        yield from _item(f"{text}: {', '.join(f'`{field}`' for field in fields)}")
    yield ""


def _object(path: str, node: Schema, definitions: Schema) -> Iterator[str]:
    """A section for this object, and one for each object in it."""
    yield from (f"## {path}", "")
    required = node.get("required", ())
    children = {name: resolved(child, definitions) for name, child in node["properties"].items()}
    for name, child in children.items():
        yield from _item(_entry(path, name, child, name in required))
    yield ""
    for name, child in children.items():
        inner, suffix = _inner(child, definitions)
        if "properties" in inner:
            yield from _object(f"{path}.{name}{suffix}", inner, definitions)


def _inner(node: Schema, definitions: Schema) -> tuple[Schema, str]:
    if "items" in node:
        return resolved(node["items"], definitions), "[]"
    return node, ""


def _entry(path: str, name: str, node: Schema, required: bool) -> str:
    facts = [_type(node), *_bounds(node)]
    if required:
        facts.append("required")
    text = " ".join(node.get("description", "").split())
    default = None if "properties" in node else node.get("default")
    if path.startswith("spec") and default not in (None, [], {}) and "efault" not in text:
        facts.append(f"default {_value(default)}")
    return f"`{name}` ({', '.join(facts)}): {text}"


def _type(node: Schema) -> str:
    if "enum" in node or "const" in node:
        *others, last = [_value(value) for value in node.get("enum") or [node["const"]]]
        return f"{', '.join(others)} or {last}" if others else last
    if "x-kubernetes-int-or-string" in node:
        return "integer or string"
    kind: str = node.get("type", "any")
    if kind == "array":
        inner = node["items"].get("type")
        return f"list of {inner}s" if inner else "list"
    return "map" if kind == "object" and "properties" not in node else kind


def _bounds(node: Schema) -> Iterator[str]:
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    high = None if high == LARGEST else high
    if low is not None and high is not None:
        yield f"{_number(low)} to {_number(high)}"
    elif low is not None:
        yield f"at least {_number(low)}"
    elif high is not None:
        yield f"at most {_number(high)}"
    if above is not None:
        yield f"above {_number(above)}"
    if below is not None:
        yield f"below {_number(below)}"


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:,}"


def _value(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# --- the commands ---------------------------------------------------------------------------------


def command_page() -> str:
    """The help of both commands and of all their verbs."""
    lines = [
        "# Commands",
        "",
        _NOTE,
        "",
        *_wrapped(
            "What `--help` prints for `regroup` and for `kubectl trainingjob`. `regroup "
            "trainingjob` is the same command as `kubectl trainingjob`. "
            "[How to use it](../tasks/command-line.md)."
        ),
        "",
        *_command(regroup, "regroup", skip=trainingjob.name),
        *_command(trainingjob, "kubectl trainingjob"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _command(command: click.Command, name: str, skip: str | None = None) -> Iterator[str]:
    """A section with the help of a command, and one for each of its verbs but one."""
    yield from (f"## {name}", "")
    with click.Context(command, info_name=name, max_content_width=WIDTH - 2) as context:
        yield from ("```text", *_help(command, context), "```", "")
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            found = ELSEWHERE.get(verb) if skip else None
            if verb != skip:
                yield from _command(found or command.commands[verb], f"{name} {verb}")


def _help(command: click.Command, context: click.Context) -> list[str]:
    return [re.sub(r"\s+$", "", line) for line in command.get_help(context).splitlines()]


# --- the reasons ----------------------------------------------------------------------------------


OF_WHY = {
    "NotObserved": (
        "the job has no status. Do: look again in a minute, then look for the job in the "
        "operator's log"
    ),
    "StatusRefused": (
        "the API server refuses the status that the operator writes. Do: mend what its answer in "
        "the message names"
    ),
    "OutOfMemory": "the operator is away, and a pod ran out of memory and was killed",
    "PodFailed": "the operator is away, and a pod ended with an error",
    "NoPods": "the operator is away, and the job has no pods",
    "OperatorAway": "the operator is away, and no pod shows an error",
}
"""Reason that is of `why` alone -> what it means."""


def reason_page() -> str:
    """Each reason of a job that does not train, or not as it should, with what `why` says of it."""
    lines = [
        "# Reasons",
        "",
        _NOTE,
        "",
        *_wrapped(
            "While a job does not train, condition `Ready` is False for one of these reasons, and "
            "the metric `trainingjob_waiting` has it as a label. The message of the condition says "
            "what is missing, and where. `kubectl trainingjob why` prints what stands here: "
            "whether it heals, and what to do. [Why a job waits](../concepts/waiting.md) says more."
        ),
        "",
    ]
    for heals, words in HEALS.items():
        found = [item for item in WHILE_WAITING.items() if item[1].heals == heals]
        if not found:  # of a job that trains
            continue
        lines += [f"## Heals: {words.partition(';')[0]}", ""]
        for reason, advice in found:
            lines += _item(f"`{reason.name}`: {reason.value}. Do: {advice.what_to_do}.")
        lines += [""]
    training = (
        f"`{name}`: heals: {HEALS[advice.heals]}. Do: {advice.what_to_do}."
        for name, advice in WHILE_TRAINING.items()
    )
    lines += _listed(
        "While the job trains",
        "Condition `Degraded` is True for one of these, for `VolumeUnavailable` or "
        "`CoordinatorUnreachable`, or `Checkpointed` is False. `why` says of a missing worker what "
        "it says of its pod. `RepeatedFailures` holds between two tries too: three failures or "
        "hangs of the program within half an hour.",
        training,
    )
    lines += [""]
    lines += _listed(
        "Of `why` alone",
        "`Ready`, `Degraded` and `Checkpointed` have none of these. `why` uses them where the "
        "operator has not written a status, and where it is away: then `why` judges by pods and "
        "events, with the reasons above too, and says to start the operator again.",
        (f"`{name}`: {meaning}." for name, meaning in OF_WHY.items()),
    )
    return "\n".join(lines) + "\n"


def _listed(title: str, about: str, items: Iterable[str]) -> list[str]:
    """A section: what its items have in common, and the items."""
    return [f"## {title}", "", *_wrapped(about), "", *itertools.chain(*map(_item, items))]


# --- the series -----------------------------------------------------------------------------------

_JOB = {"namespace", "trainingjob"}
"""Labels of every series of a job, which the page leaves out."""
_LISTS: dict[str, tuple[Program, Callable[[frozenset[str]], bool]]] = {
    "jobs": (expositions.operator, lambda labels: labels >= _JOB),
    "operator": (expositions.operator, lambda labels: not labels >= _JOB),
    "coordinator": (expositions.coordinator, lambda labels: True),
    "worker": (expositions.agent, lambda labels: "rank" not in labels),
    "ranks": (expositions.agent, lambda labels: "rank" in labels),
}
"""Name of a list in the page -> the program that exports its series, and which of them by their
labels.
"""
_LIST = re.compile(r"(<!-- series: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def metric_page() -> str:
    """The page with its lists as they are now. All else on it is written by hand. Raises KeyError
    for an unknown list.
    """
    page = (PAGES / "metrics.md").read_text()
    return _LIST.sub(lambda found: f"{found[1]}\n{_series_of(found[2])}\n{found[3]}", page)


def _series_of(name: str) -> str:
    program, belongs = _LISTS[name]
    found = sorted(one for one in expositions.exported(program) if belongs(one.labels))
    return "".join(f"{line}\n" for one in found for line in _item(_series(one)))


def _series(one: Series) -> str:
    labels = ", ".join(sorted(one.labels - _JOB))
    shown = f"{one.name}{{{labels}}}" if labels else one.name
    return f"`{shown}`, {one.type}: {one.text.rstrip('.')}."


# --- writing --------------------------------------------------------------------------------------


def _item(text: str) -> list[str]:
    return _wrapped(text, "- ", "  ")


def _wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


@click.command()
@click.option("--check", is_flag=True, help="Fail when a page is out of date.")
def main(check: bool) -> None:
    """Write the pages."""
    for name, content in pages().items():
        page = PAGES / name
        if check and (not page.exists() or page.read_text() != content):
            sys.exit(f"{name} is out of date: run `python -m tools.reference_pages`")
        if not check:
            page.write_text(content)


if __name__ == "__main__":
    main()
