"""The jobs that a soak trains.

Jobs of one program have the same model and order of samples, so that one undisturbed run has the
losses of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devcluster.node import PAUSE_IMAGE
from soak import clock
from soak.kinds import APPLICATION, HANG, may_be_counted

STEPS = 1_000_000
"""More than any soak makes."""
PROGRAMS = "soak-programs"
"""The ConfigMap with the scripts."""
MIN_REPLICAS = 2
CHECKPOINT_STEPS = 200
SNAPSHOT_STEPS = 20
TORCHRUN_STEPS = 20
"""A script of torchrun saves so often."""
SPARE_RESTARTS = 1
"""More than a bounded job needs: the checker finds a single wrong count without an end of the job,
and all that is done to it afterwards counts.
"""
PROGRESS_SECONDS = 20
PACE_SECONDS = 0.03
SIDECAR = "sidecar"
"""A container beside the trainer's. Kubernetes starts it again."""
EPHEMERAL_BYTES = 64 * 2**20
"""So much of its node's disk a pod may take."""
CLOCK_FILE = "clock"
"""So many seconds as it says in a pod's /tmp, the wall clock of the pod's processes is ahead."""
CLOCK = clock.variables(clock.MOUNTED, f"/tmp/{CLOCK_FILE}")
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How a kind of job is described."""

    program: str
    """Name of what it trains."""
    replicas: int
    spec: Json
    bounded: bool = False
    """Whether restarts are bounded, and nodes that fail are avoided as by default. The others go on
    whatever is counted, so that an episode has all its faults.
    """


def _trainer(**parallelism: Any) -> Json:
    training = {"steps": STEPS, "globalBatchSize": 12, "microBatchSize": 2, "sequenceLength": 64}
    model = {"name": "gpt", "preset": "tiny"}
    return {"trainer": {"model": model, "parallelism": parallelism, "training": training}}


SHAPES: Mapping[str, Shape] = {
    "ddp": Shape("gpt", 3, _trainer(strategy="ddp"), bounded=True),
    "fsdp": Shape("gpt", 3, _trainer(strategy="fsdp"), bounded=True),
    "hsdp": Shape("gpt", 4, _trainer(strategy="hsdp", shardGroupSize=2)),
    "tensor": Shape("gpt", 4, _trainer(strategy="ddp", tensorParallel=2)),
    "session": Shape("session_loop", 3, {}),
    "torchrun": Shape("torchrun_loop", 3, {"launcher": "torchrun"}),
}
UNDISTURBED = {"gpt": "ddp", "session_loop": "session", "torchrun_loop": "torchrun"}
"""Program -> the kind of job that trains it alone."""


def manifest(name: str, kind: str, faults: Sequence[str] = ()) -> Json:
    """A TrainingJob of a kind, on the claim of its own name. It is to outlive faults of these
    kinds.
    """
    shape = SHAPES[kind]
    made = _manifest(name, shape, shape.replicas, PACE_SECONDS)
    spec = made["spec"]
    spec["elasticPolicy"] = {"minReplicas": MIN_REPLICAS, "maxReplicas": shape.replicas}
    if shape.bounded:
        budgets = {"maxRestarts": APPLICATION, "maxHangRestarts": HANG}
        spec["restartPolicy"] |= {
            budget: may_be_counted(cause, faults) + SPARE_RESTARTS
            for budget, cause in budgets.items()
        }
        del spec["nodeFailurePolicy"]
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
    spec = {
        "replicas": replicas,
        "restartPolicy": {"maxRestarts": -1, "maxHangRestarts": -1, "maxBackoffSeconds": 5},
        "failureDetection": {"progressTimeoutSeconds": PROGRESS_SECONDS},
        "nodeFailurePolicy": {"excludeAfterFailures": 0},
        "checkpoint": checkpoint,
        "template": {"spec": _template(name, shape, pace)},
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


def _template(name: str, shape: Shape, pace: float) -> Json:
    """The workers' pods: a clock that can be set, a limit of the disk and a sidecar in each."""
    container: Json = {
        "name": "trainer",
        "env": [{"name": variable, "value": value} for variable, value in CLOCK.items()],
        "resources": {"limits": {"ephemeral-storage": str(EPHEMERAL_BYTES)}},
        "volumeMounts": [{"name": "clock", "mountPath": clock.MOUNTED}],
    }
    volumes = [{"name": "clock", "configMap": {"name": clock.CONFIG_MAP}}]
    if "trainer" not in shape.spec:
        _add_script(container, shape.program, pace)
        volumes.append({"name": "programs", "configMap": {"name": PROGRAMS}})
    sidecar = {"name": SIDECAR, "image": PAUSE_IMAGE, "restartPolicy": "Always"}
    return {
        "affinity": _spread(name),
        "containers": [container],
        "initContainers": [{**sidecar, "securityContext": RESTRICTED}],
        "volumes": volumes,
    }


def _add_script(container: Json, program: str, pace: float) -> None:
    container["command"] = ["python", f"{program}.py"]
    container["workingDir"] = "/soak"
    container["env"] += [
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PACE_SECONDS", "value": str(pace)},
    ]
    container["volumeMounts"].append({"name": "programs", "mountPath": "/soak"})


def _spread(name: str) -> Json:
    """Workers go to different nodes as far as there are enough."""
    labels = {"matchLabels": {"regroup.dev/job": name, "regroup.dev/role": "worker"}}
    term = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
