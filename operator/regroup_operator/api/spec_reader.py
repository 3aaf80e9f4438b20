"""Reads a spec as a user wrote it, with errors that name the field, its value and a way out.
Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from regroup_operator.api.spec import TrainingJobSpec
from regroup_trainer.protocol.message import quote, shorten


class InvalidSpecError(ValueError):
    """The spec breaks a rule that the API server cannot check. The message names the field, its
    value and a way out.
    """


MOST_LEVELS = 50
"""Objects and lists of a spec in one another. Pods have about ten. What reads and renders a spec is
recursive, and `observe.bounded_json` cuts objects off below this.
"""

MOST_VALUES, MOST_CHARACTERS = 10_000, 256 * 1024
"""Of a spec. The API server takes 1.5 MB, and each round of a job reads its spec: with 400,000
values that takes seconds of the operator's one thread. A spec of a hundred sidecars has 3,000.
"""


def parse_spec(document: Mapping[str, Any]) -> TrainingJobSpec:
    """Read a spec (camelCase, as in YAML). Raises InvalidSpecError, which names every wrong
    field.
    """
    if problem := _excess(document):
        raise InvalidSpecError(problem)
    for field, value in document.items():
        if _is_deep(value, MOST_LEVELS - 1):
            raise InvalidSpecError(
                f"spec.{shorten(str(field))}: more than {MOST_LEVELS} objects and lists lie in one "
                "another: no pod needs that: write a flat one"
            )
    try:
        return TrainingJobSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidSpecError(
            "; ".join(_explain(problem) for problem in error.errors(include_url=False)[:5])
        ) from error


def _excess(document: Mapping[str, Any]) -> str:
    """Which bound of its size a spec exceeds; empty when it exceeds none. Looks no further than to
    the bounds, and is not recursive.
    """
    values, characters, waiting = 0, 0, list[Any]([document])
    while waiting:
        part = waiting.pop()
        inner = _parts(part) if isinstance(part, Mapping | list) else ()
        waiting += inner
        values += len(inner)
        keys = map(str, part) if isinstance(part, Mapping) else ()
        characters += len(part) if isinstance(part, str) else sum(map(len, keys))
        if values > MOST_VALUES:
            return (
                f"spec: has more than {MOST_VALUES} values, and no pod needs that: put long lists "
                "into a file or a ConfigMap"
            )
        if characters > MOST_CHARACTERS:
            return (
                f"spec: has more than {MOST_CHARACTERS} characters: put long texts into a file or "
                "a ConfigMap"
            )
    return ""


def _is_deep(value: Any, levels: int) -> bool:
    """Whether more than `levels` objects and lists lie in one another. Not recursive."""
    layer = _holders([value])
    for _ in range(levels):
        layer = [part for holder in layer for part in _holders(_parts(holder))]
    return bool(layer)


def _holders(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, Mapping | list)]


def _parts(holder: Mapping[str, Any] | list[Any]) -> Collection[Any]:
    return holder.values() if isinstance(holder, Mapping) else holder


def _explain(problem: Any) -> str:
    path = ".".join(["spec", *(shorten(str(part)) for part in problem["loc"])])
    message, given = str(problem["msg"]).removeprefix("Value error, "), problem["input"]
    if problem["type"] != "extra_forbidden":
        if message.startswith(f"{path}."):  # a rule of the whole section names the field itself
            return message
        about_others = problem["type"] in ("missing", "value_error") and isinstance(given, Mapping)
        return f"{path}: {message}" + ("" if about_others else f", got {quote(given)}")
    nearest = difflib.get_close_matches(
        str(problem["loc"][-1]), known_fields(problem["loc"][:-1]), n=1
    )
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    return f"{path}: unknown field{hint}"


def known_fields(path: tuple[str | int, ...]) -> list[str]:
    """The names (camelCase) of the fields of the section at `path` under spec; empty where there is
    no section.
    """
    model: type[BaseModel] | None = TrainingJobSpec
    for part in path:
        fields = {field.alias: field for field in model.model_fields.values()} if model else {}
        model = (
            _section_of(fields[part].annotation)
            if part in fields
            else model
            if isinstance(part, int)
            else None
        )
    return [str(field.alias) for field in model.model_fields.values()] if model else []


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_of(part))), None)
