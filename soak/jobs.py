"""The jobs that a soak trains.

Jobs of one program have the same model and order of samples, so that one undisturbed run has the
losses of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 1_000_000
"""More than any soak makes."""
PROGRAMS = "soak-programs"
"""The ConfigMap with the scripts."""
CHECKPOINT_STEPS = 200
SNAPSHOT_STEPS = 20
TORCHRUN_STEPS = 20
"""A script of torchrun saves so often."""
PROGRESS_SECONDS = 20
PACE_SECONDS = 0.03
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How a kind of job is described."""

    program: str
    """Name of what it trains."""
    replicas: int
    spec: Json


def _trainer(**parallelism: Any) -> Json:
    training = {"steps": STEPS, "globalBatchSize": 12, "microBatchSize": 2, "sequenceLength": 64}
    model = {"name": "gpt", "preset": "tiny"}
    return {"trainer": {"model": model, "parallelism": parallelism, "training": training}}


SHAPES: Mapping[str, Shape] = {
    "ddp": Shape("gpt", 3, _trainer(strategy="ddp")),
    "fsdp": Shape("gpt", 3, _trainer(strategy="fsdp")),
    "hsdp": Shape("gpt", 4, _trainer(strategy="hsdp", shardGroupSize=2)),
    "tensor": Shape("gpt", 4, _trainer(strategy="ddp", tensorParallel=2)),
    "session": Shape("session_loop", 3, {}),
    "torchrun": Shape("torchrun_loop", 3, {"launcher": "torchrun"}),
}
UNDISTURBED = {"gpt": "ddp", "session_loop": "session", "torchrun_loop": "torchrun"}
"""Program -> the kind of job that trains it alone."""


def manifest(name: str, kind: str) -> Json:
    """A TrainingJob of a kind, on the claim of its own name."""
    shape = SHAPES[kind]
    made = _manifest(name, shape, shape.replicas, PACE_SECONDS)
    made["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": shape.replicas}
    return made


def undisturbed(name: str, program: str) -> Json:
    """The same training by one worker, as fast as it can."""
    return _manifest(name, SHAPES[UNDISTURBED[program]], 1, pace=0)


def _manifest(name: str, shape: Shape, replicas: int, pace: float) -> Json:
    checkpoint: Json = {"storage": {"persistentVolumeClaim": {"claimName": name}}}
    if "launcher" not in shape.spec:
        checkpoint |= {
            "intervalSteps": CHECKPOINT_STEPS,
            "memorySnapshotSteps": SNAPSHOT_STEPS,
        }
    template: Json = {"affinity": _spread(name)}
    if "trainer" not in shape.spec:
        template |= _script(shape.program, pace)
    spec = {
        "replicas": replicas,
        "restartPolicy": {"maxRestarts": -1, "maxHangRestarts": -1, "maxBackoffSeconds": 5},
        "failureDetection": {"progressTimeoutSeconds": PROGRESS_SECONDS},
        "nodeFailurePolicy": {"excludeAfterFailures": 0},
        "checkpoint": checkpoint,
        "template": {"spec": template},
        **shape.spec,
    }
    if "launcher" in shape.spec:
        del spec["failureDetection"], spec["nodeFailurePolicy"]
        spec["restartPolicy"] = {"maxRestarts": -1, "maxBackoffSeconds": 5}
    return {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def _script(program: str, pace: float) -> Json:
    container = {
        "name": "trainer",
        "command": ["python", f"{program}.py"],
        "workingDir": "/soak",
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "PACE_SECONDS", "value": str(pace)},
        ],
        "volumeMounts": [{"name": "programs", "mountPath": "/soak"}],
    }
    volume = {"name": "programs", "configMap": {"name": PROGRAMS}}
    return {"containers": [container], "volumes": [volume]}


def _spread(name: str) -> Json:
    """Workers go to different nodes as far as there are enough."""
    labels = {"matchLabels": {"regroup.dev/job": name, "regroup.dev/role": "worker"}}
    term = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
