"""What a job's status and an event say after a round that ended without a plan: in an unexpected
error, at an object that cannot be read, or since the status was refused. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from regroup_operator.api.names import STATUS_REFUSED
from regroup_operator.api.resource import Object
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.plan import MESSAGE_LIMIT, Event
from regroup_operator.errors import (
    ClusterError,
    ConflictError,
    NotFoundError,
    UnreadableObjectError,
)
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.message import shorten
from regroup_trainer.protocol.waiting_reasons import WaitingReason

_REFUSED = (
    "the operator cannot write the status of this job, and does nothing else for it; pods that run "
    "go on: {}"
)
REASON = WaitingReason.InternalError.name


def unknown(error: Exception) -> str:
    """The begin of a sentence about an error that nothing expects."""
    what = f"{type(error).__name__}: {shorten(str(error))}"
    return f"the operator met an error that it does not know ({what})"


def describe(error: Exception) -> str:
    """One sentence for whoever looks at the job."""
    return (
        f"{unknown(error)}: pods that run go on, nothing else is done for this job, and the "
        "operator tries again: its log has the details, please report them"
    )[:MESSAGE_LIMIT]


def unread(error: UnreadableObjectError) -> Waiting:
    """What a job waits for while an object that may be one of its own cannot be read."""
    return Waiting.of(WaitingReason.ObjectConflict, error.message[:MESSAGE_LIMIT])


def event_of_unread(waiting: Waiting, generation: int) -> Event:
    """Once for each sentence and each spec."""
    key = f"{generation}-{waiting.message}"
    return Event("Warning", waiting.reason, waiting.message, key)


def status_with_error(
    raw: Any, generation: int, message: str, now: datetime, reason: str = REASON
) -> dict[str, Any]:
    """The stored status with `Ready=False` for this reason; all else stays as it is stored.

    It is not read: what cannot be read may be the reason.
    """
    status = dict(raw) if isinstance(raw, Mapping) else {}
    stored = status.get("conditions")
    known = [c for c in stored if isinstance(c, Mapping)] if isinstance(stored, list) else []
    former = next((c for c in known if c.get("type") == "Ready"), {})
    since = former.get("lastTransitionTime") if former.get("status") == "False" else None
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or format_time(now),
        "observedGeneration": generation,
    }
    others = [c for c in known if c.get("type") != "Ready"]
    return {
        **status,
        "message": message,
        "observedGeneration": generation,
        "conditions": [ready, *others],
    }


def event_of(error: Exception, message: str, generation: int) -> Event:
    """Once for each kind of error and each spec."""
    return Event("Warning", REASON, message, f"{type(error).__name__}-{generation}")


def event_of_refusal(error: ClusterError, document: Object, now: datetime) -> Event | None:
    """What forbids to write a status over that of `document` cannot be said in the status: an event
    an hour, and another one where a status was written since. None for what may pass, or has passed
    with the job.
    """
    if error.may_pass or isinstance(error, (ConflictError, NotFoundError)):
        return None
    text = _REFUSED.format(error)[:MESSAGE_LIMIT]
    written = json.dumps(document.get("status"), sort_keys=True)
    key = f"{document['metadata'].get('generation', 0)}-{now:%Y%m%d%H}-{written}"
    return Event("Warning", STATUS_REFUSED, text, key)
