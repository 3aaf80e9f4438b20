"""Words for requests that a cluster refused, or never got: what, which object, what to do. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from regroup_trainer.protocol.message import printable

NO_ANSWER = 0
"""Stands for the status of a request that got no answer."""
NOT_FOUND = 404
"""The status where there is no such object."""
FORBIDDEN = 403
"""The status where the user lacks a right."""
_SEVERAL_CAUSES = 2
_JOBS = "trainingjobs"
_ADVICE = {
    401: "log in again, or choose another user with --context",
    FORBIDDEN: "ask an administrator for this right (see docs/tasks/command-line.md)",
    409: "it exists, or somebody else has changed it: look at it, and try again",
    429: "the API server is busy: try again in a minute",
}


class ClusterError(Exception):
    """A request failed. The message says which, why, and what to do."""

    def __init__(self, message: str, status: int = NO_ANSWER) -> None:
        super().__init__(message)
        self.status = status
        """The status of HTTP; NO_ANSWER without one."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.status in (NO_ANSWER, 429) or self.status >= 500


@dataclass(frozen=True)
class Request:
    """What was asked."""

    verb: str
    """As in a role; `open` for a command or a port of a pod: releases ask for `get` or `create`."""
    resource: str
    """Plural, as in a role."""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource} {self.name}" if self.name else self.resource
        return f"{self.verb} {what}" + (f" in namespace {self.namespace}" if self.namespace else "")


def refusal(request: Request, status: int, body: str | None) -> ClusterError:
    """The error for an answer that is no success. `body`: what the API server wrote."""
    message, details = _read(body)
    if status == NOT_FOUND:
        return ClusterError(_not_found(request, message, details), status)
    reason = "; ".join(_causes(details)) or message or f"HTTP status {status}"
    advice = _ADVICE.get(status) or (_ADVICE[429] if status >= 500 else "")
    return ClusterError(f"cannot {request}: {reason}" + (f": {advice}" if advice else ""), status)


def unreachable(server: str, why: object) -> ClusterError:
    """The error for a request that got no answer."""
    return ClusterError(
        f"cannot reach the API server {printable(server)}: {printable(str(why))}: check the "
        "network, and the cluster of --context"
    )


def _read(body: str | None) -> tuple[str, dict[str, Any]]:
    """Message and details of a Status object."""
    try:
        value = json.loads(body or "")
    except ValueError:
        return printable((body or "").strip()), {}
    if not isinstance(value, dict):
        return "", {}
    details = value.get("details")
    return printable(str(value.get("message", ""))), details if isinstance(details, dict) else {}


def _causes(details: dict[str, Any]) -> list[str]:
    """One sentence for each field that is wrong; empty for one cause, which the message names."""
    causes = [cause for cause in details.get("causes") or () if isinstance(cause, dict)]
    if len(causes) < _SEVERAL_CAUSES:
        return []
    return [printable(f"{c.get('field', '')}: {c.get('message', '')}") for c in causes]


def _not_found(request: Request, message: str, details: dict[str, Any]) -> str:
    if request.name and details.get("name", request.name) != request.name:
        return f"cannot {request}: {message}"  # what it depends on is not there
    if request.resource.startswith(_JOBS) and not details.get("name"):
        return (
            "the cluster knows no TrainingJobs: install Regroup there (helm install regroup "
            "charts/regroup), or choose another cluster with --context"
        )
    what = "trainingjob" if request.resource.startswith(_JOBS) else request.resource
    where = f" in namespace {request.namespace}" if request.namespace else ""
    advice = ": `kubectl trainingjob get -A` lists all" if what == "trainingjob" else ""
    return f"{what} {printable(request.name)} not found{where}{advice}"
