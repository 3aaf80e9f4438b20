"""The steps of a new user, each with its check."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demo.errors import StoryError
from demo.installation import RELEASE, ROOT, SYSTEM, Image, monitoring_values
from demo.kubectl import Kubectl
from demo.screen import Screen
from demo.volume import Volume
from demo.waiting import wait_for
from demo.walkthrough import cells, documented
from demo.walkthrough.notebook import Notebook
from demo.walkthrough.terminal import Terminal
from demo.walkthrough.transcript import Transcript
from demo.walkthrough.walkthrough_browser import open_job, photograph

NAMESPACE = "team"
JOB = "sine"
CONVERTED = "points"
PATIENCE = 600.0
"""Seconds for anything to happen: the machine may be busy."""
LARGEST_ERROR = 0.05
"""Mean square error of the model, which was 0.5 before it was trained."""
PAGE_PICTURE, NOTEBOOK_PICTURE = "walkthrough-page.png", "walkthrough-notebook.png"
NOTEBOOK_CAPTION = "The cells of the notebook, drawn as HTML"
LATER_TAG = "upgrade"
MONITORED = ("servicemonitor", "podmonitor", "prometheusrule")
Json = dict[str, Any]


@dataclass(frozen=True)
class Walk:
    """What the steps have in hand."""

    terminal: Terminal
    notebook: Notebook
    kubectl: Kubectl
    """With which the checks look at the cluster. What the user types is in the terminal."""
    images: dict[str, Image]
    later_images: dict[str, Image]
    """To upgrade to."""
    volume: Path
    """The folder of this machine that is the claim's volume."""
    pictures: Path

    @property
    def transcript(self) -> Transcript:
        return self.terminal.transcript

    @property
    def screen(self) -> Screen:
        return self.terminal.screen

    def require(self, sentence: str, holds: bool, found: object) -> None:
        """Check what a step promises. Raises StoryError."""
        if not holds:
            raise StoryError(f"this does not hold: {sentence} (found: {found})")
        self.screen.report(f"yes  {sentence}", "green")
        self.transcript.checked(sentence)

    def status(self, name: str = JOB) -> Json:
        found: Json = self.kubectl.read("trainingjob", name, "-n", NAMESPACE).get("status", {})
        return found

    def until(self, what: str, condition: Callable[[Json], bool], name: str = JOB) -> Json:
        """Wait until the status is so, and return it. Raises StoryError."""

        def found() -> Json | None:
            status = self.status(name)
            return status if condition(status) else None

        return wait_for(
            what, found, PATIENCE, every=1.0,
            hint=lambda: str(self.status(name).get("message")),
        )  # fmt: skip

    def until_step(self, step: int, name: str = JOB) -> Json:
        return self.until(f"step {step}", lambda status: step_of(status) >= step, name)

    def resumed_from(self) -> int:
        """The step with which the newest generation of the job began, from its volume."""
        uid = self.kubectl.read("trainingjob", JOB, "-n", NAMESPACE)["metadata"]["uid"]
        written = Volume(self.volume / NAMESPACE / f"{JOB}-{uid[:8]}")
        begun = (written.resumed_from(number) for number in sorted(written.announced()))
        return [step for step in begun if step is not None][-1]

    def workers(self) -> dict[str, str]:
        """Name of each worker pod -> its UID."""
        ours = f"regroup.dev/job={JOB},regroup.dev/role=worker"
        pods = self.kubectl.read("pods", "-n", NAMESPACE, "-l", ours)["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def operators(self) -> set[str]:
        """The operator's pods that are not being deleted."""
        ours = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=regroup-operator"
        pods = self.kubectl.read("pods", "-n", SYSTEM, "-l", ours)["items"]
        return {p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]}


def renamed(images: dict[str, Image]) -> dict[str, Image]:
    """The same images under the tag to upgrade to."""
    return {
        target: Image(f"{image.repository}:{LATER_TAG}", image.path)
        for target, image in images.items()
    }


def step_of(status: Json) -> int:
    """The newest step that the status shows."""
    return int(status.get("progress", {}).get("step", 0))


def trains_with(size: int, status: Json) -> bool:
    """Whether the job trains with so many ranks."""
    return status.get("worldSize") == size and status.get("phase") == "Running"


def lost_steps(status: Json) -> int:
    """Steps that were lost in the job's life."""
    return int(status.get("goodput", {}).get("lostSteps", 0))


def install(walk: Walk) -> None:
    """Install"""
    walk.transcript.words(
        "The nodes have both images already. The namespace `team` has the claim `shared`. "
        "([Install](../tasks/install.md))"
    )
    changes = {
        f"REGISTRY/regroup-{target},{prefix}image.tag=TAG": (
            f"{walk.images[target].repository},{prefix}image.tag={walk.images[target].tag}"
        )
        for target, prefix in (("operator", ""), ("trainer", "trainer."))
    }
    walk.terminal.type(documented.INSTALL, changes)
    walk.terminal.type(documented.ROLLOUT)
    printed = walk.terminal.type(documented.TEST)
    walk.require("`helm test` has passed", "Phase:          Succeeded" in printed, printed)
    image = walk.images["trainer"].name
    printed = walk.terminal.type(documented.DOCTOR, more=f" --image {image}")
    walk.require("nothing fails", "FAIL" not in printed, printed)


def monitor(walk: Walk) -> None:
    """Switch monitors, alerts and dashboards on"""
    walk.transcript.words(
        "The cluster has the definitions of the Prometheus operator. The values are those of the "
        "page. ([Metrics, dashboards and alerts](../tasks/monitoring.md))"
    )
    text = monitoring_values()
    (walk.terminal.folder / "monitoring.yaml").write_text(text)
    walk.transcript.block("yaml", text)
    walk.terminal.type(documented.MONITOR)
    where = f"kubectl -n {SYSTEM} get"
    printed = walk.terminal.type_line(f"{where} servicemonitors,podmonitors,prometheusrules")
    walk.require(
        "the operator, the pods of jobs and the alerts have their objects",
        all(f"{kind}.monitoring.coreos.com/regroup" in printed for kind in MONITORED), printed,
    )  # fmt: skip
    printed = walk.terminal.type_line(f"{where} configmaps -l grafana_dashboard")
    found = re.search(r"^regroup-dashboards +3 ", printed, re.MULTILINE)
    walk.require("Grafana's sidecar finds the three dashboards", bool(found), printed)


def submit(walk: Walk) -> None:
    """Submit a function from a notebook"""
    walk.transcript.words(
        "The notebook runs on this machine, with the kubeconfig of the user. ([Train from "
        "Python](../tasks/python-client.md))"
    )
    for cell in (cells.TRAIN, cells.SUBMIT):
        walk.notebook.run(cell)
    shown = walk.notebook.run(cells.STARTED)
    walk.require("the notebook shows that the job runs", "Running" in shown, shown)
    shown = walk.notebook.run(cells.PROGRESS)
    walk.require("the notebook shows the step", bool(re.search(r"step[= ]\d+", shown)), shown)
    shown = walk.notebook.run(cells.METRICS)
    walk.require("the loss has points over time", "points" in shown, shown)
    drawn = walk.terminal.folder / "notebook.html"
    drawn.write_text(walk.notebook.page())
    photograph(drawn, walk.pictures / NOTEBOOK_PICTURE)
    walk.transcript.picture(f"../pictures/{NOTEBOOK_PICTURE}", NOTEBOOK_CAPTION)


def watch(walk: Walk) -> None:
    """Watch it on the web page"""
    walk.transcript.words(
        "A checkpoint first, so that the page has one to show. The second command prints an "
        "address, which Chromium opens here. ([The web page](../tasks/web-page.md))"
    )
    walk.terminal.type(documented.CHECKPOINT, {"gpt": JOB})
    with walk.terminal.running(f"{documented.PAGE.typed()} --no-browser") as line:
        found = re.search(r"http://\S+", line)
        if not found:
            raise StoryError(f"the command printed no address: {line}")
        text = open_job(found[0], f"{NAMESPACE}/{JOB}", walk.pictures / PAGE_PICTURE)
    walk.transcript.picture(f"../pictures/{PAGE_PICTURE}", "The page of the job")
    walk.require("the page shows the workers", f"{JOB}-w0-1" in text, text)


def look(walk: Walk) -> None:
    """Watch it with kubectl"""
    walk.transcript.words(
        "`top` asks a worker for the step of this second, and `describe` shows the whole status "
        "with the events. ([Start on a cluster](cluster.md), [Why a job "
        "waits](../concepts/waiting.md))"
    )
    printed = walk.terminal.type(documented.TOP)
    row = next((line.split() for line in printed.splitlines() if line.startswith(JOB)), [])
    walk.require("the row of the job is of this second", row[-1:] == ["live"], printed)
    printed = walk.terminal.type(documented.DESCRIBE, {"gpt": JOB})
    walk.require(
        "its phase and its events are shown",
        bool(re.search(r"^ *Phase: +Running$", printed, re.MULTILINE)) and "\nEvents:" in printed,
        printed,
    )  # fmt: skip


def resize(walk: Walk) -> None:
    """Resize"""
    walk.transcript.words("First to two workers, then to three. ([Resize](../tasks/resize.md))")
    for size in (2, 3):
        walk.terminal.type(documented.SCALE, {"gpt": JOB, "--replicas 4": f"--replicas {size}"})
        status = walk.until(f"{size} ranks", partial(trains_with, size))
        walk.until_step(step_of(status) + 20)
    walk.terminal.type(documented.TIMELINE, {"gpt": JOB})
    walk.require(
        "the job trains with three ranks, and lost no step", lost_steps(walk.status()) == 0,
        walk.status().get("recoveries"),
    )  # fmt: skip


def suspend(walk: Walk) -> None:
    """Suspend and resume"""
    walk.transcript.words(
        "A suspended job has no pods. ([Suspend and resume](../tasks/suspend.md))"
    )
    walk.terminal.type(documented.SUSPEND, {"gpt": JOB})
    status = walk.until("the suspension", lambda status: status.get("phase") == "Suspended")
    wait_for("the end of its pods", lambda: not walk.workers(), PATIENCE, every=1.0)
    saved = status["checkpoint"]["lastStep"]
    walk.terminal.type_line(f"kubectl get trainingjob {JOB}")
    walk.require("its last step is saved", saved == step_of(status), status)


def load_weights(walk: Walk) -> None:
    """Load the weights in the notebook"""
    walk.transcript.words(
        "The job is still suspended. A pod of the moment reads its volume. "
        "([Weights](../tasks/python-client.md#weights))"
    )
    shown = walk.notebook.run(cells.WEIGHTS)
    found = re.search(r"error ([0-9.]+)", shown)
    walk.require(
        f"the model has learned: its error is below {LARGEST_ERROR}",
        bool(found) and float(found[1] if found else 1) < LARGEST_ERROR, shown,
    )  # fmt: skip
    left = walk.kubectl.read("pods", "-n", NAMESPACE, "-l", "regroup.dev/reader")["items"]
    living = [pod for pod in left if "deletionTimestamp" not in pod["metadata"]]
    walk.require("the pod that read them is gone", not living, left)


def resume(walk: Walk) -> None:
    """Resume"""
    before = walk.status()["checkpoint"]["lastStep"]
    walk.terminal.type(documented.RESUME, {"gpt": JOB})
    walk.until_step(before + 20)
    found = walk.resumed_from()
    walk.require("it goes on at the step that was saved", found == before, found)


def export(walk: Walk) -> None:
    """Export the model"""
    walk.transcript.words(
        "A worker has the volume mounted, and the status names the folder. "
        "([Checkpoints](../tasks/checkpoints.md#export-and-start-from-given-weights))"
    )
    pod = min(walk.workers())
    folder = str(Path(walk.status()["checkpoint"]["path"]).parents[1])
    walk.terminal.type(documented.EXPORT, {"POD": pod, "DIRECTORY": folder})
    shown = walk.notebook.run(cells.EXPORTED)
    walk.require("the file has the weights of the model", "'0.weight': (64, 1)" in shown, shown)


def convert(walk: Walk) -> None:
    """Convert a PyTorchJob and run it"""
    folder = walk.terminal.folder
    shutil.copy(ROOT / "bench/shapes/ddp_snapshots.py", folder / "train.py")
    shutil.copy(ROOT / "bench/shapes/points.py", folder)
    text = PYTORCH_JOB.format(name=CONVERTED, image=walk.images["trainer"].name)
    (folder / "pytorchjob.yaml").write_text(text)
    walk.transcript.words(
        "`pytorchjob.yaml` was written for Kubeflow's Training Operator. Its script comes from a "
        "ConfigMap, and saves on a volume. ([Move from "
        "PyTorchJob](../tasks/move-from-pytorchjob.md))"
    )
    walk.transcript.block("yaml", text)
    walk.terminal.type(documented.CODE)
    walk.terminal.type(
        documented.CONVERT, {"pytorchjob.yaml >": "pytorchjob.yaml --claim shared >"}
    )
    walk.terminal.type(documented.VALIDATE)
    walk.terminal.type(documented.APPLY)
    status = walk.until(
        "the end of the converted job", lambda status: status.get("phase") in ("Succeeded",
        "Failed"), CONVERTED,
    )  # fmt: skip
    walk.terminal.type_line(f"kubectl get trainingjob {CONVERTED}")
    walk.require("the converted job succeeds", status["phase"] == "Succeeded", status)


PYTORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {name}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &template
        spec:
          containers:
            - name: pytorch
              image: {image}
              command: [torchrun, train.py, /saves, "20"]
              workingDir: /mine
              volumeMounts:
                - {{name: mine, mountPath: /mine}}
                - {{name: saves, mountPath: /saves}}
          volumes:
            - {{name: mine, configMap: {{name: mine}}}}
            - {{name: saves, persistentVolumeClaim: {{claimName: shared}}}}
    Worker:
      replicas: 1
      restartPolicy: OnFailure
      template: *template
"""


def upgrade(walk: Walk) -> None:
    """Upgrade while it trains"""
    walk.transcript.words(
        "The job of the notebook trains meanwhile. The new images have the same programs under "
        f"another tag, `{LATER_TAG}`: the operator's pods are replaced, and the job has to keep "
        "its own images. (Another test upgrades from 0.2.0, whose programs differ.) "
        "([Upgrade](../tasks/upgrade.md))"
    )
    before, workers, operators = walk.status(), walk.workers(), walk.operators()
    operator, trainer = (walk.later_images[target] for target in ("operator", "trainer"))
    tags = {
        "image.tag=TAG,trainer.image.tag=TAG": (
            f"image.tag={operator.tag},trainer.image.tag={trainer.tag}"
        )
    }
    walk.terminal.type(documented.UPGRADE, tags, more=" --wait")
    walk.terminal.type(documented.ROLLOUT)
    wait_for("new operators", lambda: not operators & walk.operators(), PATIENCE, every=1.0)
    walk.terminal.type(documented.LEASE)
    printed = walk.terminal.type_line(f"kubectl -n {SYSTEM} get deployment regroup -o wide")
    walk.require("the operator runs the new image", operator.name in printed, printed)
    after = walk.until_step(step_of(before) + 40)
    same = ("images", "rendezvousGeneration", "coordinatorTerm", "restartCount")
    walk.require(
        "the job trained on with the same workers and images in the same generation, and lost no "
        "step",
        walk.workers() == workers
        and lost_steps(after) == lost_steps(before)
        and all(after.get(name) == before.get(name) for name in same),
        (before, after, workers),
    )


def uninstall(walk: Walk) -> None:
    """Uninstall"""
    walk.transcript.words("The definition stays, and all jobs. ([Install](../tasks/install.md))")
    workers = walk.workers()
    walk.terminal.type(documented.UNINSTALL)
    wait_for("the end of the operators", lambda: not walk.operators(), PATIENCE, every=1.0)
    printed = walk.terminal.type_line("kubectl get crd trainingjobs.regroup.dev")
    printed += walk.terminal.type_line("kubectl get trainingjobs")
    walk.require(
        "the definition and both jobs are there",
        all(name in printed for name in ("trainingjobs.regroup.dev", JOB, CONVERTED)),
        printed,
    )
    shown = walk.notebook.run(cells.TRAINS_ON)
    walk.require(
        "the job trains on without an operator", walk.workers() == workers, (shown, workers)
    )


STEPS = (
    install, monitor, submit, watch, look, resize, suspend, load_weights, resume, export, convert,
    upgrade, uninstall,
)  # fmt: skip
"""In their order. The first line of each docstring is the heading."""
