"""Gives the operator a bug: each round fails in which it would make the coordinator of one job.

The operator's pods have this module as `sitecustomize`, which Python imports at its start.
"""

from __future__ import annotations

from typing import Any

from regroup_operator.render import workload

JOB = "gpt-bug"
_coordinator_pod = workload.coordinator_pod


def coordinator_pod(job: Any, *arguments: Any, **named: Any) -> Any:
    """As the operator's own, but for one job."""
    if job.name == JOB:
        raise ZeroDivisionError("division by zero")
    return _coordinator_pod(job, *arguments, **named)


workload.coordinator_pod = coordinator_pod
