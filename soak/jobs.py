"""The jobs that a soak trains. All have one model and one order of samples, so that one undisturbed
run has the losses of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = 1_000_000
"""More than any soak makes."""
CHECKPOINT_STEPS = 200
SNAPSHOT_STEPS = 20
PROGRESS_SECONDS = 20
Json = dict[str, Any]

PARALLELISM: Mapping[str, Json] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "hsdp": {"strategy": "hsdp", "shardGroupSize": 2},
    "tensor": {"strategy": "ddp", "tensorParallel": 2},
}
REPLICAS: Mapping[str, int] = {"ddp": 3, "fsdp": 3, "hsdp": 4, "tensor": 4}


def manifest(name: str, kind: str) -> Json:
    """A TrainingJob of a kind that stands in `PARALLELISM`, on the claim of its own name."""
    replicas = REPLICAS[kind]
    made = _manifest(name, replicas, PARALLELISM[kind])
    made["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": replicas}
    return made


def reference(name: str) -> Json:
    """The same training by one worker."""
    return _manifest(name, 1, PARALLELISM["ddp"])


def _manifest(name: str, replicas: int, parallelism: Json) -> Json:
    training = {"steps": STEPS, "globalBatchSize": 12, "microBatchSize": 2, "sequenceLength": 64}
    spec = {
        "replicas": replicas,
        "restartPolicy": {"maxRestarts": -1, "maxHangRestarts": -1, "maxBackoffSeconds": 5},
        "failureDetection": {"progressTimeoutSeconds": PROGRESS_SECONDS},
        "nodeFailurePolicy": {"excludeAfterFailures": 0},
        "checkpoint": {
            "intervalSteps": CHECKPOINT_STEPS,
            "memorySnapshotSteps": SNAPSHOT_STEPS,
            "storage": {"persistentVolumeClaim": {"claimName": name}},
        },
        "trainer": {
            "model": {"name": "gpt", "preset": "tiny"},
            "parallelism": parallelism,
            "training": training,
        },
        "template": {"spec": {"affinity": _spread(name)}},
    }
    return {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def _spread(name: str) -> Json:
    """Workers go to different nodes as far as there are enough."""
    labels = {"matchLabels": {"regroup.dev/job": name, "regroup.dev/role": "worker"}}
    term = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
