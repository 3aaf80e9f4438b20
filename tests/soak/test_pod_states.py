"""What a pod waits for: its scheduler, its kubelet, or nothing of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from soak.pod_states import (
    LATE_SECONDS,
    TAKEN,
    UNPLACED,
    UNSEEN,
    PodLook,
    state,
    waits_for_kubernetes,
)

CREATED, PLACED = "2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z"
NEW_YEAR = 1767225600.0
NO_NODE = "0/3 nodes are available: 1 node(s) had untolerated taint(s)"
AVOIDED = f"{NO_NODE}, 2 node(s) didn't match Pod's node affinity/selector."
PLACEMENT = {"conditions": [{"type": "PodScheduled", "lastTransitionTime": PLACED}]}
Json = dict[str, Any]


def pod(node: str | None, status: Json) -> Json:
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"creationTimestamp": CREATED}, "spec": spec, "status": status}


def refused(message: str) -> Json:
    """The status of a pod for which the scheduler found no node."""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"conditions": [{**condition, "lastTransitionTime": CREATED}]}


@pytest.mark.parametrize(
    ("described", "seconds", "expected"),
    [
        (pod(None, {}), 4, TAKEN),
        (pod(None, {}), 6, UNPLACED),
        (pod(None, refused(NO_NODE)), 6, UNPLACED),
        (pod(None, refused(AVOIDED)), 6, TAKEN),
        (pod("a", PLACEMENT), 14, TAKEN),
        (pod("a", PLACEMENT), 16, UNSEEN),
        (pod("off", PLACEMENT), 16, TAKEN),
        (pod("a", {**PLACEMENT, "startTime": PLACED}), 16, TAKEN),
    ],
)
def test_a_pod_is_late_only_while_kubernetes_does_nothing_about_it(
    described: Json, seconds: float, expected: str
) -> None:
    assert state(described, NEW_YEAR + seconds, lambda node: node != "off") == expected


def test_a_late_pod_excuses_no_time_in_which_nobody_could_look() -> None:
    late = [PodLook(0.0, (TAKEN,), (TAKEN,)), PodLook(60.0, (TAKEN,), (UNSEEN,))]
    assert list(waits_for_kubernetes(late, 1)) == [(60.0 - LATE_SECONDS, 60.0)]
