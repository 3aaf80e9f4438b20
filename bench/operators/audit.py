"""Who has written what: counted from the audit log of the API server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  resources: [{group: coordination.k8s.io}, {group: authorization.k8s.io}]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"""
"""Writes, but for the leases of nodes and leaders, and reviews of rights, which store nothing."""
CONTROLLERS = "system:kube-controller-manager"
UNCOUNTED = ("kwok", "system:kube-scheduler", "admin", "system:apiserver")
"""Users who do the same for all: the simulated kubelets, the scheduler, the benchmark."""


class Write(NamedTuple):
    """One request that changes something."""

    who: str
    """User; for the controllers of Kubernetes, which share one, the name of the controller."""
    verb: str
    resource: str
    """With its subresource."""


def writes(log: Iterable[str]) -> Counter[Write]:
    """The writes of operators and controllers."""
    found = (_write(json.loads(line)) for line in log)
    return Counter(write for write in found if write is not None)


def by_verb(found: Mapping[Write, int]) -> Counter[str]:
    """How many there are of each verb."""
    counted: Counter[str] = Counter()
    for write, count in found.items():
        counted[write.verb] += count
    return counted


def status_writes(log: Iterable[str], resource: str) -> Counter[str]:
    """Those of each object's status, by its name."""
    found: Counter[str] = Counter()
    for event in map(json.loads, log):
        write = _write(event)
        if write is not None and write.resource == f"{resource}/status":
            found[event["objectRef"]["name"]] += 1
    return found


def by_controllers(found: Mapping[Write, int]) -> int:
    """How many came from the controllers of Kubernetes."""
    return sum(count for write, count in found.items() if write.who.endswith("-controller"))


def _write(event: dict[str, Any]) -> Write | None:
    user, what = event["user"]["username"], event.get("objectRef", {})
    if user in UNCOUNTED or event["verb"] in ("get", "list", "watch"):
        return None
    who = event.get("userAgent", "").rpartition("/")[2] if user == CONTROLLERS else user
    parts = (what.get("resource", ""), what.get("subresource", ""))
    return Write(who, event["verb"], "/".join(filter(None, parts)))
