"""What counts as a finding: in the operator's log, and in what a job shows. Pure."""

from __future__ import annotations

import re

from bench.fuzz.server_refusals import answers
from tests.support.kube_api import Json

OURS = ("", "regroup.dev/operator")
"""Values of spec.managedBy of a job that is the operator's."""
REFUSALS = ("InvalidSpec", "NotSupported", "ObjectConflict", "InternalError")
"""Reasons of `Ready=False` that say no to something that was written, in the operator's words."""
API_ERROR = "ApiError"
"""The reason of a refusal in Kubernetes' words: our validation took what Kubernetes does not."""
_FIELD = re.compile(r"\b(?:spec|metadata)\b(?:\.[\w$]+|\[[^\]]*\])*|\b\w+(?:\.\w+)+")
"""A path, also without `spec`, as in `checkpoint.storage`."""
_VALUE = re.compile(r"['\"\d]|=|: [A-Z]\w+ is |\bgot |\b(?:None|True|False)\b")
_NO_VALUE = re.compile(
    r"unknown field|missing|needed|reserved|leave it out|[Rr]equired|belong together|one another"
    r"|at once|is not shared|not possible with launcher torchrun|Forbidden: may not"
)
"""What is reported of a field that should not be there, or should."""
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
    return message if refused and not names_field_and_value(message) else ""


def refusal(job: Json) -> str:
    """Status and sentence of the API server where it refuses what a job needs; empty: it does not,
    or has not answered.
    """
    found = ready(job)
    message = str(found.get("message", "")) if found.get("reason") == API_ERROR else ""
    return next(iter(answers(message)), "")


def names_field_and_value(message: str) -> bool:
    """Whether each clause of a refusal names a field, and its value unless it should be absent, or
    is.
    """
    return all(map(_is_clear, _CLAUSES.split(message)))


def _is_clear(clause: str) -> bool:
    field = _FIELD.search(clause)
    if field is None:
        return False
    rest = clause[: field.start()] + clause[field.end() :]
    if "Input should" in rest or "String should" in rest:
        return ", got " in rest
    return bool(_VALUE.search(rest) or _NO_VALUE.search(rest))
