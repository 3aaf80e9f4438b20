"""Finds what is wrong with a TrainingJob without a cluster: file, line, field, value, what to
do.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

import click
from pydantic import ValidationError

from regroup.cli.manifest import Document, FieldPath
from regroup_operator.api.resource import API_VERSION, KIND, NAME_LIMIT, NAME_PATTERN
from regroup_operator.api.settings import Settings
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.spec_reader import known_fields
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.support import unsupported
from regroup_operator.api.template_check import check_template
from regroup_operator.errors import TemplateError
from regroup_operator.observe.observed import Job
from regroup_operator.render.pod_check import find_problem
from regroup_trainer.protocol.message import quote, shorten

_NAMES_FIELD = re.compile(r"spec[-.\w\[\]]*: ")
HEADER_FIELDS = ["apiVersion", "kind", "metadata", "spec", "status"]


@dataclass(frozen=True)
class Problem:
    """One thing to repair."""

    file: str
    line: int
    """0: the whole file."""
    field: str
    """Its path as in YAML; empty: what stands there is no YAML."""
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(filter(None, (place, self.field, self.message)))


def validate(document: Document, on_cluster: bool = True) -> list[Problem]:
    """All problems of a document, in the order of its lines; empty when a cluster, or a local run,
    would accept it.
    """
    if not isinstance(document.value, dict):
        return [
            problem_at(
                document, (), "a TrainingJob is a mapping with apiVersion, kind, metadata and spec"
            )
        ]
    problems = _header_problems(document)
    if isinstance(document.value.get("spec"), dict):
        problems += _spec_problems(document, document.value["spec"], on_cluster)
    else:
        problems.append(problem_at(document, ("spec",), "is missing: it describes what to train"))
    return sorted(problems, key=lambda problem: problem.line)


def _header_problems(document: Document) -> list[Problem]:
    problems = []
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = document.value.get(key)
        if given != wanted:
            problems.append(problem_at(document, (key,), f"must be {wanted}, got {quote(given)}"))
    unknown = [
        key if isinstance(key, str) else quote(key)
        for key in document.value
        if key not in HEADER_FIELDS
    ]
    problems += [
        problem_at(document, (key,), f"unknown field{nearest(key, HEADER_FIELDS)}")
        for key in unknown
    ]
    metadata = document.value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        problems.append(
            problem_at(document, ("metadata", "name"), "is missing: give the job a name")
        )
    elif not re.fullmatch(NAME_PATTERN, name) or len(name) > NAME_LIMIT:
        rule = (
            f"use lower-case letters, digits and '-', a letter first, at most {NAME_LIMIT} "
            "characters"
        )
        problems.append(
            problem_at(document, ("metadata", "name"), f"{quote(name)} is no valid name: {rule}")
        )
    return problems


def _spec_problems(document: Document, value: dict[str, Any], on_cluster: bool) -> list[Problem]:
    try:
        spec = TrainingJobSpec.model_validate(value)
    except ValidationError as error:
        return [_explain(document, details) for details in error.errors(include_url=False)]
    if problem := _pod_problem(spec):
        return [_of_named_field(document, problem)]
    return [_unsupported(document, sentence) for sentence in unsupported(spec, on_cluster)]


def _pod_problem(spec: TrainingJobSpec) -> str:
    """What the operator would refuse of the pods that follow from the spec; empty when nothing."""
    try:
        check_template(spec.template or {})
        return find_problem(_as_submitted(spec), _SETTINGS)
    except TemplateError as error:
        return str(error)


def _of_named_field(document: Document, sentence: str) -> Problem:
    """A sentence that begins with its field, such as `spec.template.spec.volumes[a].name: ...`."""
    field, _, message = sentence.partition(": ")
    line = document.line_of(tuple(field.partition("[")[0].split(".")))
    return Problem(click.format_filename(document.file), line, field, message)


def _as_submitted(spec: TrainingJobSpec) -> Job:
    """With a name that stands for any valid one: an invalid one is reported for itself."""
    return Job(
        namespace="default",
        name="job",
        uid="00000000",
        generation=1,
        deleting=False,
        suspend=spec.suspend,
        launcher=spec.launcher,
        status=TrainingJobStatus(),
        spec=spec,
    )


_SETTINGS = Settings(
    trainer_image="regroup/trainer",
    coordinator_image="regroup/operator",
    key_secret="none/none",
    lease="none/none",
)
"""Stands for an installation: what is refused of a spec does not depend on it."""


def _explain(document: Document, details: Any) -> Problem:
    location: FieldPath = details["loc"]
    message = details["msg"].removeprefix("Value error, ")
    if not location and _NAMES_FIELD.match(message):
        return _of_named_field(document, message)
    if details["type"] == "extra_forbidden":
        message = f"unknown field{nearest(str(location[-1]), known_fields(location[:-1]))}"
    elif details["type"] == "missing":
        message = "is missing"
    elif not isinstance(details["input"], dict | list):
        message = f"{message}, got {quote(details['input'])}"
    return problem_at(document, ("spec", *location), message)


def nearest(name: str, known: list[str]) -> str:
    """What to add behind an unknown name: one that is spelled like it, or all that are known."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": known here are {', '.join(sorted(known))}" if known else ""


def _unsupported(document: Document, sentence: str) -> Problem:
    found = re.search(r"spec[.\w]*", sentence)
    path = tuple(found.group().split(".")) if found else ("spec",)
    return problem_at(document, path, sentence)


def problem_at(document: Document, path: FieldPath, message: str) -> Problem:
    """A problem with a field, with its line."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{shorten(part)}"
    field = shown.removeprefix(".") or "document"
    return Problem(click.format_filename(document.file), document.line_of(path), field, message)
