"""Installs Regroup on a cluster as a user would: images, the Helm chart, a namespace and a volume
claim.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo.errors import DemoError
from demo.kubectl import Kubectl
from demo.monitors import KINDS
from demo.screen import Screen
from demo.stages.stage import CLAIM, Stage
from tests.support.prometheus_operator import definition

ROOT = Path(__file__).resolve().parent.parent
MONITORING = ROOT / "docs/tasks/monitoring.md"
RELEASE = "regroup"
SYSTEM = "regroup-system"


@dataclass(frozen=True)
class Image:
    """A built image."""

    name: str
    """The full name, with the tag."""
    path: Path
    """The exported image on disk."""

    @property
    def repository(self) -> str:
        """The name without the tag."""
        return self.name.rpartition(":")[0]

    @property
    def tag(self) -> str:
        return self.name.rpartition(":")[2]


def build_images(screen: Screen) -> dict[str, Image]:
    """Build the images whose inputs changed. Returns target -> image. Raises DemoError."""
    with screen.step("Building the images of operator and trainer"):
        command = [sys.executable, "-m", "tools.images"]
        environment = {
            "TORCH_SLIM": "1",
            **os.environ,
        }  # by default, the demo's nodes have no GPU
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            for line in process.stdout or ():
                screen.report(line.rstrip(), "dim")
        if process.returncode:
            raise DemoError(
                "the images could not be built: see the output above, or run `make image`"
            )
    return images()


def images() -> dict[str, Image]:
    """The newest images: target -> image."""
    pointers = json.loads((ROOT / "build/images.json").read_text())
    return {target: Image(found["name"], Path(found["path"])) for target, found in pointers.items()}


def install(stage: Stage, built: dict[str, Image], screen: Screen) -> None:
    """Load the images and install or upgrade the chart. Raises DemoError."""
    with screen.step("Loading the images onto the nodes"):
        stage.load({image.name: image.path for image in built.values()}, screen)
    with screen.step("Installing the Helm chart"):
        helm_install(stage.kubectl, built)


def helm_install(
    kubectl: Kubectl,
    built: dict[str, Image],
    chart: Path = ROOT / "charts/regroup",
    options: Sequence[str] = (),
) -> None:
    """Install or upgrade the release and wait until the operator is ready. `options`: of helm.
    Raises CommandError.
    """
    values = {
        "image.repository": built["operator"].repository,
        "image.tag": built["operator"].tag,
        "trainer.image.repository": built["trainer"].repository,
        "trainer.image.tag": built["trainer"].tag,
    }
    settings = [
        part for name, value in values.items() for part in ("--set-string", f"{name}={value}")
    ]
    where = ("--namespace", SYSTEM, "--create-namespace")
    kubectl.helm(
        "upgrade",
        "--install",
        RELEASE,
        str(chart),
        *where,
        *settings,
        *options,
        "--wait",
        "--timeout",
        "120s",
    )


def define_monitors(kubectl: Kubectl) -> None:
    """Install the definitions of the Prometheus operator that the chart's objects need. Raises
    CommandError.
    """
    for plural in ("servicemonitors", "podmonitors", "prometheusrules"):
        kubectl("apply", "--server-side", "-f", str(definition(plural)))


def monitoring_values() -> str:
    """The values that switch monitors and alerts on, as the page about monitoring has them. Raises
    DemoError.
    """
    block = re.search(r"```yaml\n(# monitoring.yaml.*?)```", MONITORING.read_text(), re.DOTALL)
    if block is None:
        raise DemoError(f"{MONITORING} shows no monitoring.yaml")
    return block[1]


def monitors(kubectl: Kubectl, chart: Path = ROOT / "charts/regroup") -> list[dict[str, Any]]:
    """The monitors that the chart would make. Raises CommandError.

    A cluster without the Prometheus operator cannot have them.
    """
    kinds = ("serviceMonitor", "podMonitor")
    settings = [part for kind in kinds for part in ("--set", f"metrics.{kind}.enabled=true")]
    text = kubectl.helm("template", RELEASE, str(chart), "--namespace", SYSTEM, *settings)
    found = (one for one in yaml.safe_load_all(text) if one)
    return [one for one in found if one["kind"] in KINDS]


def make_namespace(stage: Stage, namespace: str) -> None:
    """Create a namespace with the claim `shared`, bound to a volume. Raises CommandError."""
    stage.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    stage.kubectl.apply(*stage.storage(namespace), namespace=namespace)
    bound = "--for=jsonpath={.status.phase}=Bound"
    stage.kubectl("wait", f"pvc/{CLAIM}", "-n", namespace, bound, "--timeout=100s")
