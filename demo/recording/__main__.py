"""Records demo/recording/history.gz, which `make dashboards` draws: python -m demo.recording

API server, operators, coordinators, agents, ranks and Prometheus are real; nodes are played. Four
jobs in two namespaces meet faults: a rank fails, a node loses its power, a coordinator and the
operator that leads are killed. Needs root, since pods have their volume at /regroup/volume. Takes
some minutes; Ctrl-C ends it earlier, and what happened until then is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.history import export, write
from demo.job import manifest
from demo.prometheus import Prometheus, scraping
from demo.promql import Window
from demo.recording import FILE
from demo.recording.kubelet import Machine, targets
from demo.screen import Screen
from demo.waiting import wait_for
from devcluster.apiserver import ApiServer
from regroup_trainer.protocol.environment import PEAK_TFLOPS, VOLUME_MOUNT
from tests.support.kube_api import Api, Json, Namespace, install_definition
from tests.support.operator_process import (
    Kubelets,
    OperatorProcess,
    installed_operator,
    kubeconfig_of_release,
    make_claim,
    make_node,
    renewed_leases,
)
from tests.support.repeating import repeated

NODES = ["n1", "n2", "n3", "n4"]
STEPS = 300
AWAY_SECONDS = 15.0
"""How long the node has no power."""


@dataclass(frozen=True)
class RecordedScene:
    """What the faults happen to."""

    research: Namespace
    vision: Namespace
    machine: Machine
    operators: list[OperatorProcess]
    screen: Screen

    def step(self) -> int:
        """Committed steps of the job `gpt`."""
        progress = self.research.read().get("status", {}).get("progress", {})
        return int(progress.get("step", 0))

    def phase(self, namespace: Namespace, name: str) -> str:
        """The phase of a job."""
        return str(namespace.read(name).get("status", {}).get("phase"))

    def at_step(self, step: int, what: str) -> None:
        """Wait until the job is that far, and say what happens now."""
        wait_for(f"step {step}", lambda: self.step() >= step or None, 600, every=0.3)
        self.screen.report(f"step {self.step()}: {what}")


def job(**changes: Any) -> Json:
    """The spec of the demo's job, with changes."""
    spec: Json = manifest()["spec"]
    # The played nodes keep workers apart. Their devices have a peak, so that MFU is shown.
    peak = {"name": PEAK_TFLOPS, "value": "0.05"}
    trainer = {"name": "trainer", "env": [peak]}
    spec["template"] = {"spec": {"containers": [trainer]}}
    spec["trainer"]["training"]["steps"] = STEPS
    spec["checkpoint"]["intervalSteps"] = 40
    return {**spec, **changes}


def begin(scene: RecordedScene) -> None:
    """Create the jobs: two train, one finds no node, one no image."""
    scene.machine.refusals |= {"bert": leave_pending, "segment": fail_to_pull}
    for namespace, name, spec in (
        (scene.research, "gpt", job()),
        (scene.research, "bert", job()),
        (scene.vision, "vit", job(replicas=1, elasticPolicy={"minReplicas": 1, "maxReplicas": 1})),
        (scene.vision, "segment", job(image="registry.example/segment:2")),
    ):
        answer = namespace.create(spec, name)
        if answer.status != 201:
            sys.exit(f"the API server refused {name}: {answer.message}")


def leave_pending(pod: str, kubelets: Kubelets) -> None:
    """The scheduler finds no node."""
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    kubelets.write(pod, {"conditions": [{**condition, "message": message}]})


def fail_to_pull(pod: str, kubelets: Kubelets) -> None:
    """The image does not exist."""
    kubelets.bind(pod, NODES[0])
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    shown = {"name": "trainer", "image": "registry.example/segment:2", "imageID": ""}
    container = {**shown, "ready": False, "restartCount": 0, "state": {"waiting": waiting}}
    kubelets.write(pod, {"phase": "Pending", "containerStatuses": [container]})


def faults(scene: RecordedScene) -> None:
    """Let the faults happen, and wait for the end of the job."""
    machine = scene.machine
    scene.at_step(60, "the process of rank 1 is killed")
    machine.kill_rank("gpt", 1)
    scene.at_step(120, "the node of rank 0 loses its power")
    lose_node(scene)
    scene.at_step(190, "the coordinator is killed, and a rank of the other job")
    machine.of("gpt", "coordinator")[0].process.kill()
    machine.kill_rank("vit", 0)
    scene.at_step(230, "the operator that leads is killed")
    next(one for one in scene.operators if one.exit_code() is None and one.leads()).end()
    ended = ("Succeeded", "Failed")
    wait_for(
        "the end of gpt",
        lambda: scene.phase(scene.research, "gpt") in ended or None,
        600,
        every=0.5,
    )


def lose_node(scene: RecordedScene) -> None:
    """Cut the power of rank 0's node for a while."""
    workers = scene.research.read()["status"]["workers"]
    node = next(one["node"] for one in workers if one.get("rank") == 0)
    scene.machine.cut_power(node)
    threading.Timer(AWAY_SECONDS, scene.machine.restore_power, [node]).start()


@contextmanager
def volume() -> Iterator[None]:
    """The folder that pods have their volume at, which must not exist before."""
    folder = Path(VOLUME_MOUNT)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder.parent)


@contextmanager
def discovered(scene: RecordedScene, file: Path) -> Iterator[None]:
    """Keeps the list of what Prometheus scrapes up to date."""

    def follow() -> None:
        operators = [{"targets": [f"127.0.0.1:{o.metrics_port}"]} for o in scene.operators]
        found = [*operators, *targets(scene.machine.live())]
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(found))
        unfinished.rename(file)

    with repeated(follow, 0.5):
        yield


def configuration(targets: Path) -> Json:
    """Of a Prometheus that scrapes the targets in a file. Operators run in no pods here, so the
    chart's monitors would find none.
    """
    discovery = [{"files": [str(targets)]}]
    return scraping([{"job_name": "regroup", "honor_labels": True, "file_sd_configs": discovery}])


def make_scene(stack: ExitStack, folder: Path) -> RecordedScene:
    """Start everything but the jobs."""
    api = Api(stack.enter_context(ApiServer()).kubeconfig)
    install_definition(api)
    for node in NODES:
        make_node(api, node)
    stack.enter_context(renewed_leases(api, NODES))
    spaces = [Namespace.make(api, name) for name in ("research", "vision")]
    for one in spaces:
        make_claim(one)
    first = installed_operator(api, folder)
    (folder / "second").mkdir()
    second = OperatorProcess(kubeconfig_of_release(api, folder / "second"), folder / "second")
    for operator in (first, second):
        stack.callback(operator.end)
        operator.start(stands_by=operator is second)
    machine = stack.enter_context(Machine(spaces, NODES, folder / "pods"))
    return RecordedScene(spaces[0], spaces[1], machine, [first, second], Screen())


def main() -> None:
    """Record."""
    # Pods' folders hold what went wrong, if something does.
    folder = Path(tempfile.mkdtemp(prefix="regroup-recording-"))
    print(f"Logs: {folder}", flush=True)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with ExitStack() as stack:
        stack.enter_context(volume())
        scene = make_scene(stack, folder)
        file = folder / "targets.json"
        stack.enter_context(discovered(scene, file))
        monitor = Prometheus.start(
            folder / "prometheus", configuration(file), "--query.lookback-delta=5s"
        )
        stack.callback(monitor.stop)
        began = time.time()
        begin(scene)
        try:
            faults(scene)
            time.sleep(5)
        finally:
            write(export(monitor.server, Window.of(began, time.time())), FILE)


if __name__ == "__main__":
    main()
