"""The jobs that meet the causes of alerts, and the programs that they run."""

from __future__ import annotations

from pathlib import Path

from demo.job import Job
from demo.stages.stage import CLAIM
from demo.ten_faults.scene import NAMESPACE, Json, Scene
from demo.ten_faults.strikes import CPU

LOOP = "loop"
"""The job of the program that fails on demand."""
LOOP_PROGRAM, OPERATOR_PROGRAM = "faulty-loop", "faulty-operator"
"""ConfigMaps with that program, and with what gives the operator a bug."""
BUG = "gpt-bug"
"""The job that meets that bug, as `programs/faulty_operator.py` has it."""
PROGRAMS = Path(__file__).parent / "programs"
SWITCH = "fault"
"""Name of the file that says how it fails, as `programs/faulty_loop.py` has it."""
MEMORY = "1Gi"
MOUNTED = "/programs"


def program(name: str, key: str) -> Json:
    """The ConfigMap that holds a program, as a file with the name `key`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {key: (PROGRAMS / f"{name.replace('-', '_')}.py").read_text()},
    }


def loop() -> Json:
    """The job of a custom loop, with one worker and a limit of memory."""
    container = {
        "name": "trainer",
        "command": ["python", "loop.py"],
        "workingDir": MOUNTED,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "volumeMounts": [{"name": "programs", "mountPath": MOUNTED}],
    }
    volume = {"name": "programs", "configMap": {"name": LOOP_PROGRAM}}
    limits = {**CPU["limits"], "memory": MEMORY}
    checkpoint = {"intervalSteps": 100, "storage": {"persistentVolumeClaim": {"claimName": CLAIM}}}
    return {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": LOOP},
        "spec": {
            "replicas": 1,
            "resources": {**CPU, "limits": limits},
            "checkpoint": checkpoint,
            "template": {"spec": {"containers": [container], "volumes": [volume]}},
        },
    }


def idle(name: str) -> Json:
    """A job that is suspended from the beginning: it has a status, and no pods."""
    made = loop()
    made["metadata"]["name"] = name
    made["spec"]["suspend"] = True
    return made


def loop_of(scene: Scene) -> Job:
    """The job of the custom loop, as it is on the cluster."""
    found = scene.stage.kubectl.read("trainingjob", LOOP, "-n", NAMESPACE)
    return Job(scene.stage, NAMESPACE, LOOP, found["metadata"]["uid"], 0)


def switch(scene: Scene) -> Path:
    """The file beside the checkpoints of the loop that says how it fails."""
    return loop_of(scene).volume().folder / SWITCH
