"""What counts as a finding: in the operator's log, and in what a job shows. Pure."""

from __future__ import annotations

import re
from typing import Any

from bench.fuzz.server_refusals import answers
from regroup_trainer.protocol.message import quote, shorten
from tests.support.kube_api import Json

OURS = ("", "regroup.dev/operator")
"""Values of spec.managedBy of a job that is the operator's."""
REFUSALS = ("InvalidSpec", "NotSupported", "ObjectConflict", "InternalError")
"""Reasons of `Ready=False` that say no to something that was written, in the operator's words."""
API_ERROR = "ApiError"
"""The reason of a refusal in Kubernetes' words: our validation took what Kubernetes does not."""
_FIELD = re.compile(r"\b(?:spec|metadata)\b(?:\.[\w$]+|\[[^\]]*\])*|\b\w+(?:\.\w+)+")
"""A path, also without `spec`, as in `checkpoint.storage`."""
_PARTS = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_VALUE = re.compile(r"['\"\d]|=|: [A-Z]\w+ is |\bgot |\b(?:None|True|False)\b")
"""Where the spec has nothing at the path: a default, or what follows from other fields."""
_NO_VALUE = re.compile(
    r"unknown field|missing|needed|reserved|leave it out|[Rr]equired|belong together|one another"
    r"|at once|is not shared|not possible with launcher torchrun|Forbidden: may not"
    r"|both give|both given|of no meaning|(?:more than|has) \d+ (?:values|characters|levels|bytes)"
)
"""What is reported of a field that should not be there, or should, or that is too large."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CLAUSES = re.compile(r"; (?=spec|not )")


def troubles(log: str) -> list[str]:
    """The lines of the operator's log that report an error that it does not know."""
    marks = ("Traceback", "reconcile failed", "Task exception", "was never retrieved")
    return [line for line in log.splitlines() if any(mark in line for mark in marks)]


def last_line(log: str) -> str:
    """What the operator logged last, such as why it ends; empty: nothing."""
    return next(iter(log.splitlines()[-1:]), "")


def is_judged(job: Json) -> bool:
    """Whether the operator has reported what it makes of a job."""
    return bool(ready(job).get("message")) or not is_ours(job)


def is_ours(job: Json) -> bool:
    """Whether the operator is to see to a job."""
    return (job["spec"].get("managedBy") or "") in OURS


def ready(job: Json) -> Json:
    """The condition Ready of a job; empty while it has none."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Ready"), {})


def unnamed_refusal(job: Json) -> str:
    """The message of a refusal that names neither field nor value; empty: there is none."""
    found = ready(job)
    message = str(found.get("message", ""))
    refused = found.get("status") == "False" and found.get("reason") in REFUSALS
    return message if refused and not names_field_and_value(message, job["spec"]) else ""


def refusal(job: Json) -> str:
    """Status and sentence of the API server where it refuses what a job needs; empty: it does not,
    or has not answered.
    """
    found = ready(job)
    message = str(found.get("message", "")) if found.get("reason") == API_ERROR else ""
    return next(iter(answers(message)), "")


def names_field_and_value(message: str, spec: Json) -> bool:
    """Whether each clause of a refusal of `spec` names a field, and the value that the spec has
    there: of a section, something in it. A value that should be absent, or is, need not be named.
    """
    return all(_is_clear(clause, spec) for clause in _CLAUSES.split(message))


def _is_clear(clause: str, spec: Json) -> bool:
    field = _FIELD.search(clause)
    if field is None:
        return False
    rest = clause[: field.start()] + clause[field.end() :]
    if ("Input should" in rest or "String should" in rest) and ", got " not in rest:
        return False
    if _NO_VALUE.search(rest):
        return True
    given = [value for value in _values_at(spec, field.group()) if value not in (None, {}, [])]
    return any(_shows(rest, value) for value in given) if given else bool(_VALUE.search(rest))


def _values_at(spec: Json, path: str) -> list[Any]:
    """What a spec has at the path of a refusal, which may end in a type that was tried in vain:
    nothing, one value, or those of entries that share a name.
    """
    found: list[Any] = [spec]
    for label, name in _PARTS.findall(path.removeprefix("spec")):
        found = [value for holder in found for value in _inner(holder, label or name)]
    return found


def _inner(holder: Any, part: str) -> list[Any]:
    """What is called so: a field, an entry of this name, else that of this place."""
    if isinstance(holder, dict):
        return [holder.get(part)]
    if not isinstance(holder, list):
        return [holder]
    named = [entry for entry in holder if isinstance(entry, dict) and entry.get("name") == part]
    return named or (holder[int(part) :][:1] if part.isdecimal() else [])


def _shows(sentence: str, given: Any) -> bool:
    """Whether a sentence shows a value, as a whole or in part."""
    if isinstance(given, int | float):
        is_there = any(float(number) == given for number in _NUMBER.findall(sentence))
        return is_there or _has_word(sentence, quote(given))
    if quote(given) in sentence:
        return True
    if isinstance(given, str):
        return bool(given) and any(_has_word(sentence, text) for text in (given, shorten(given)))
    if isinstance(given, dict):
        sections = [name for name, value in given.items() if isinstance(value, dict | list)]
        is_named = any(quote(name) in sentence for name in given)
        return is_named or any(_shows(sentence, part) for part in (*given.values(), *sections))
    if isinstance(given, list):
        is_counted = f"={len(given)} " in sentence
        return is_counted or any(_shows(sentence, part) for part in given)
    return False


def _has_word(sentence: str, text: str) -> bool:
    """A single letter, which may be an article, counts behind a quotation mark or "=" only."""
    before = r"(?<!\w)" if len(text) > 1 or text.isdigit() else "['=]"
    return re.search(rf"{before}{re.escape(text)}(?!\w)", sentence) is not None
