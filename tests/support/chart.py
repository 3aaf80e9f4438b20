"""The chart of this repository as helm renders it."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from devcluster import binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/regroup"
NAMESPACE = "regroup-system"
Json = dict[str, Any]
Objects = dict[tuple[str, str], Json]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def program(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm or kubectl."""
    command = [str(binaries.build(lambda *_: None) / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def template(*flags: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """`helm template` of a release in its namespace."""
    return program("helm", "template", "regroup", chart, "--namespace", NAMESPACE, *flags)


@functools.cache
def rendered_text(*settings: str) -> str:
    """What helm renders with these settings, each of them `name=JSON`."""
    done = template(*(flag for setting in settings for flag in ("--set-json", setting)))
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def render(*settings: str) -> Objects:
    """The rendered objects by kind and name; not to be changed."""
    return by_name(rendered_text(*settings))


def write_overlay(folder: Path, registry: str, tag: str) -> None:
    """The files of the overlay that the page about the installation has, with these images."""
    page = (ROOT / "docs/tasks/install.md").read_text()
    files = re.findall(r"`(overlay/[\w.-]+)`[^`]*```yaml\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == [
        "overlay/kustomization.yaml",
        "overlay/image-fields.yaml",
    ]
    for name, text in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("REGISTRY", registry).replace("TAG", tag))


def by_name(text: str) -> Objects:
    """The objects of a text of YAML by kind and name. Of some namespaces the last one is kept."""
    objects = [document for document in yaml.load_all(text, Loader=_LOADER) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in objects}
