"""TrainingJobs as the API server returns them, read into values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from regroup_operator.api.resource import KIND, Object
from regroup_operator.api.status import Condition, ConditionType, TrainingJobStatus
from regroup_operator.api.timestamps import parse_time
from regroup_trainer.protocol.waiting_reasons import WaitingReason

_REFUSED = (WaitingReason.InvalidSpec.name, WaitingReason.NotSupported.name)
RESOURCE = f"{KIND.lower()}.regroup.dev"


@dataclass(frozen=True)
class JobRecord:
    """One TrainingJob."""

    namespace: str
    name: str
    uid: str
    """Empty for a job of this machine."""
    created: datetime | None
    generation: int
    """Of its spec."""
    spec: Object
    status: TrainingJobStatus
    has_status: bool
    """Whether the operator has looked at it."""
    status_time: datetime | None
    """When its status was last written."""
    spec_time: datetime | None
    """When anything else of it was last written."""
    unreadable: tuple[str, ...]
    """Fields of the status that another release has written, and that cannot be read."""

    @property
    def resource_name(self) -> str:
        """As kubectl prints it with -o name."""
        return f"{RESOURCE}/{self.name}"

    @property
    def uses_torchrun(self) -> bool:
        """Whether stock torchrun starts the ranks, and no coordinator leads them."""
        return self.spec.get("launcher") == "torchrun"

    @property
    def replicas(self) -> int:
        """Workers that are wanted."""
        return _number(self.spec.get("replicas"), 1)

    @property
    def ranks_per_worker(self) -> int:
        """Of each worker that takes part; 1 while none does."""
        ready = self.status.ready_replicas
        return max(1, self.status.world_size // ready) if ready else 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most workers."""
        elastic = self.section("elasticPolicy")
        least = _number(elastic.get("minReplicas"), self.replicas)
        return least, _number(elastic.get("maxReplicas"), self.replicas)

    @property
    def phase(self) -> str:
        """One word; Unknown until the operator has given one."""
        return self.status.phase or "Unknown"

    @property
    def has_ended(self) -> bool:
        """Whether it has completed or failed."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def refusal(self) -> str:
        """Why the operator makes no pods of this spec, which has to be changed; empty: it may."""
        ready, seen = self.status.condition("Ready"), self.status.observed_generation
        is_refused = ready is not None and ready.reason in _REFUSED and self.phase == "Pending"
        return ready.message if ready and is_refused and seen >= self.generation else ""

    def section(self, name: str) -> Object:
        """A section of the spec; empty when it is absent."""
        value = self.spec.get(name)
        return value if isinstance(value, dict) else {}

    def since(self, kind: ConditionType) -> datetime | None:
        """When the condition of that type last changed."""
        condition = self.status.condition(kind)
        return time_of(condition.last_transition_time) if condition else None


def read_job(document: Object) -> JobRecord:
    """Read an object of the API. What cannot be read of its status is left out, and named."""
    metadata = document.get("metadata") or {}
    spec = document.get("spec")
    status, unreadable = _read_status(document.get("status"))
    return JobRecord(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        created=time_of(metadata.get("creationTimestamp")),
        generation=_number(metadata.get("generation"), 0),
        spec=spec if isinstance(spec, dict) else {},
        status=status,
        has_status=bool(document.get("status")),
        status_time=_last_write(metadata, of_status=True),
        spec_time=_last_write(metadata, of_status=False),
        unreadable=unreadable,
    )


def time_of(text: object) -> datetime | None:
    """A time of the API in UTC; None when there is none."""
    try:
        return parse_time(text).astimezone(UTC) if isinstance(text, str) else None
    except (ValueError, OverflowError):  # the first hours of the year 1 may be before it in UTC
        return None


def notable(conditions: tuple[Condition, ...]) -> list[Condition]:
    """The conditions that somebody who looks for a fault wants to see."""
    wrong_when = {
        "Ready": "False",
        "Scheduled": "False",
        "Progressing": "False",
        "Checkpointed": "False",
        "Degraded": "True",
        "Failed": "True",
    }
    return [c for c in conditions if wrong_when.get(c.type) == c.status]


def _read_status(value: Any) -> tuple[TrainingJobStatus, tuple[str, ...]]:
    given = value if isinstance(value, dict) else {}
    try:
        return TrainingJobStatus.model_validate(given), ()
    except ValidationError as error:
        wrong = {str(details["loc"][0]) for details in error.errors() if details["loc"]}
    kept = {field: part for field, part in given.items() if field not in wrong}
    return TrainingJobStatus.model_validate(kept), tuple(sorted(wrong))


def _last_write(metadata: Object, *, of_status: bool) -> datetime | None:
    """The API server keeps who wrote what, and when."""
    times = [
        time
        for entry in metadata.get("managedFields") or ()
        if isinstance(entry, dict)
        and (entry.get("subresource") == "status") == of_status
        and (time := time_of(entry.get("time")))
    ]
    return max(times, default=None)


def _number(value: object, absent: int) -> int:
    return value if isinstance(value, int) else absent
