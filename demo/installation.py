"""Puts Regroup on a cluster as a user would: images, the Helm chart, a namespace and a claim for the jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.errors import DemoError
from demo.kubectl import Kubectl
from demo.screen import Screen
from demo.stages.stage import CLAIM, Stage

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "regroup"
SYSTEM = "regroup-system"


@dataclass(frozen=True)
class Image:
    """A built image."""

    name: str
    """With its tag."""
    path: Path
    """Its export."""

    @property
    def repository(self) -> str:
        """The name before the tag."""
        return self.name.rpartition(":")[0]

    @property
    def tag(self) -> str:
        """What comes after."""
        return self.name.rpartition(":")[2]


def build_images(screen: Screen) -> dict[str, Image]:
    """Build what changed; target -> image. Raises DemoError."""
    with screen.step("Images: operator and trainer"):
        command = [sys.executable, "-m", "tools.images"]
        environment = {"TORCH_SLIM": "1", **os.environ}  # the demo's nodes have no GPU, unless the caller says so
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or ():
                screen.tell(line.rstrip(), "dim")
        if process.returncode:
            raise DemoError("the images could not be built: see above, or run `make image`")
    return images()


def images() -> dict[str, Image]:
    """The images that were built last: target -> image."""
    pointers = json.loads((ROOT / "build/images.json").read_text())
    return {target: Image(found["name"], Path(found["path"])) for target, found in pointers.items()}


def install(stage: Stage, built: dict[str, Image], screen: Screen) -> None:
    """Load the images and install the chart, or bring it up to date. Raises DemoError."""
    with screen.step("Images to the nodes"):
        stage.load({image.name: image.path for image in built.values()}, screen)
    with screen.step("Helm chart"):
        helm_install(stage.kubectl, built)


def helm_install(kubectl: Kubectl, built: dict[str, Image]) -> None:
    """Install or upgrade the release and wait until the operator is ready. Raises CommandError."""
    values = {
        "image.repository": built["operator"].repository,
        "image.tag": built["operator"].tag,
        "trainer.image.repository": built["trainer"].repository,
        "trainer.image.tag": built["trainer"].tag,
    }
    settings = [part for name, value in values.items() for part in ("--set-string", f"{name}={value}")]
    chart = str(ROOT / "charts/regroup")
    where = ("--namespace", SYSTEM, "--create-namespace")
    kubectl.helm("upgrade", "--install", RELEASE, chart, *where, *settings, "--wait", "--timeout", "120s")


def make_namespace(stage: Stage, namespace: str) -> None:
    """A namespace with the claim `shared`, bound to a volume. Raises CommandError."""
    stage.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    stage.kubectl.apply(*stage.storage(namespace), namespace=namespace)
    bound = "--for=jsonpath={.status.phase}=Bound"
    stage.kubectl("wait", f"pvc/{CLAIM}", "-n", namespace, bound, "--timeout=100s")
