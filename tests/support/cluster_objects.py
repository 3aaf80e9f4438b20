"""Objects as an API server returns them, with times relative to NOW, for tests of the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from regroup.kubernetes.job_record import JobRecord, read_job
from regroup_operator.api.names import labels
from regroup_operator.api.resource import API_VERSION, KIND, Object
from regroup_operator.api.timestamps import format_time
from tests.support.specs import SMALLEST

NOW = datetime(2026, 11, 26, 12, 0, 0, tzinfo=UTC)


def at(seconds_ago: float) -> str:
    """A time before NOW, as the API writes it."""
    return format_time(NOW - timedelta(seconds=seconds_ago))


def condition(kind: str, status: str, reason: str, message: str, ago: float = 60) -> Object:
    """A condition."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(ago),
    }


def recovery(number: int, ago: float, **fields: Any) -> Object:
    """An entry of status.recoveries: the one that led to generation 1.NUMBER."""
    return {
        "time": at(ago),
        "cause": "infrastructure",
        "restoredFrom": "Peers",
        "generation": f"1.{number}",
        "pod": "gpt-w1-1",
        "node": "n2",
        "message": "worker gpt-w1-1 on n2 is lost: no heartbeat for 2.0 s",
        "lostSteps": 0,
        "detectSeconds": 2.0,
        "downSeconds": 2.3,
        "worldSizeBefore": 3,
        "worldSizeAfter": 2,
        **fields,
    }


def running_status(**fields: Any) -> Object:
    """The status of a job that trains with three workers; `fields` override."""
    return {
        "observedGeneration": 1,
        "phase": "Running",
        "message": "workers training: 3",
        "conditions": [
            condition("Ready", "True", "Training", "workers training: 3", 7000),
            condition("Degraded", "False", "Healthy", "nothing is wrong", 7000),
        ],
        "startTime": at(7200),
        "replicas": 3,
        "readyReplicas": 3,
        "worldSize": 3,
        "rendezvousGeneration": "1.3",
        "restartCount": 2,
        "recoveries": [recovery(2, 5000), recovery(3, 4900, restoredFrom="Snapshot", lostSteps=9)],
        "checkpoint": {
            "lastStep": 100,
            "lastTime": at(130),
            "path": "/data/team/gpt-0123abcd/checkpoints/step-100",
            "sizeBytes": 13_000_000,
            "seconds": 1.4,
        },
        "progress": {
            "step": 120,
            "totalSteps": 500,
            "percentage": 24,
            "remainingSeconds": 1900,
            "tokensPerSecond": 41000.0,
            "loss": 3.21437,
            "updatedTime": at(4),
        },
        "goodput": {
            "productiveSeconds": 6900,
            "startupSeconds": 120,
            "recoverySeconds": 60,
            "checkpointSeconds": 20,
            "waitingSeconds": 100,
            "lostSteps": 9,
            "ratio": 0.9583,
        },
        "workers": [
            {"index": n, "pod": f"gpt-w{n}-1", "node": f"n{n + 1}", "state": "Training", "rank": n}
            for n in range(3)
        ],
        **fields,
    }


def waiting_status(reason: str, message: str, **fields: Any) -> Object:
    """The status of a job that waits for this reason; `fields` override."""
    ready = condition("Ready", "False", reason, message, 200)
    given = {"phase": "Pending", "message": message, "conditions": [ready], "readyReplicas": 0}
    return running_status(**{**given, "worldSize": 0, **fields})


def job_object(status: Object | None = None, name: str = "gpt", **spec: Any) -> Object:
    """A TrainingJob of the smallest spec, as the API server returns it; `spec` overrides."""
    written = [
        {"manager": "kubectl", "time": at(7300)},
        {"manager": "regroup", "time": at(12), "subresource": "status"},
    ]
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "namespace": "team",
            "name": name,
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": at(7300),
            "managedFields": written if status else written[:1],
        },
        "spec": {**SMALLEST, **spec},
    }
    return {**document, "status": status} if status else document


def job_record(status: Object | None = None, **spec: Any) -> JobRecord:
    """The same, read."""
    return read_job(job_object(status, **spec))


def pod_object(name: str = "gpt-w0-1", role: str = "worker", **status: Any) -> Object:
    """A worker pod that runs on n1; `status` overrides."""
    index = int(name.split("-w")[1].split("-", maxsplit=1)[0]) if "-w" in name else None
    more = {} if index is None else {"index": index}
    return {
        "metadata": {
            "name": name,
            "labels": labels("gpt", role, **more),
            "creationTimestamp": at(300),
        },
        "spec": {
            "containers": [{"name": "trainer" if role == "worker" else role}],
            "nodeName": status.pop("node", "n1"),
        },
        "status": {"phase": "Running", **status},
    }


def event_object(reason: str, message: str, kind: str = "TrainingJob", **fields: Any) -> Object:
    """A warning about the job, a minute ago; `fields` override."""
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": fields.pop("name", "gpt")},
        "lastTimestamp": at(fields.pop("ago", 60)),
        **fields,
    }
