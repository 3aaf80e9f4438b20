"""What Kubernetes has done about a job's pods, and whether enough of them could run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

LATE_SECONDS = 5.0
"""A scheduler that works places a pod, and a kubelet that works takes it, in less."""
UNPLACED, UNSEEN, TAKEN = "unplaced", "unseen", "taken"
"""A pod's state: without a node or not yet taken by the kubelet of its node, for `LATE_SECONDS`;
anything else.
"""
AVOIDED = "didn't match Pod's node affinity"
"""What the scheduler says of nodes that a pod avoids."""
Json = Mapping[str, Any]


@dataclass(frozen=True)
class PodLook:
    """The states of a job's pods at one moment."""

    time: float
    """Seconds since the epoch."""
    meeting: tuple[str, ...]
    """Of the pods through which workers meet."""
    workers: tuple[str, ...]


def state(pod: Json, now: float, runs: Callable[[str], bool]) -> str:
    """The state of a pod. A pod on a node that does not run (`runs`, by name) is taken: that its
    kubelet cannot do anything is for the product to see. So is a pod that avoids nodes in vain.
    """
    status, node = pod["status"], pod["spec"].get("nodeName")
    if node is None:
        avoids = any(AVOIDED in one.get("message", "") for one in status.get("conditions", ()))
        late = _is_late(pod["metadata"]["creationTimestamp"], now)
        return UNPLACED if late and not avoids else TAKEN
    moments = {one["type"]: one["lastTransitionTime"] for one in status.get("conditions", ())}
    late = "startTime" not in status and _is_late(moments.get("PodScheduled"), now)
    return UNSEEN if late and runs(node) else TAKEN


def waits_for_kubernetes(looks: Sequence[PodLook], minimum: int) -> Iterator[tuple[float, float]]:
    """From when to when too few pods could run only because Kubernetes did not start them: those
    through which workers meet, or `minimum` workers. One look after another.

    A look says that a pod was late for `LATE_SECONDS`. What was before, while nobody could look, it
    does not say.
    """
    for before, look in pairwise(looks):
        if _waits(look.meeting, 1) or _waits(look.workers, minimum):
            yield max(before.time, look.time - LATE_SECONDS), look.time


def _waits(states: Sequence[str], minimum: int) -> bool:
    taken = states.count(TAKEN)
    return taken < minimum <= len(states)


def _is_late(since: str | None, now: float) -> bool:
    return since is not None and now - datetime.fromisoformat(since).timestamp() > LATE_SECONDS
