"""Jobs that other projects publish as examples, from their pinned Go modules. Nothing of them is in
this repository.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster.binaries import module_sources
from regroup.converting import pytorch_job, ray_job, train_job
from tests.support.kube_api import ROOT, Json

OPERATOR = ("github.com/kubeflow/training-operator", "v1.9.3")
TRAINER = ("github.com/kubeflow/trainer/v2", "v2.3.0")
KUBERAY = ("github.com/ray-project/kuberay/ray-operator", "v1.5.0")
_CHECKSUMS = {
    OPERATOR: "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
    TRAINER: "h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU=",
    KUBERAY: "h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=",
}
"""As in go.sum."""
STAND_IN = ROOT / "tests/support/programs/stand_in.py"
"""Stands in for the scripts of published jobs."""
_BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A published job."""

    name: str
    """Where it is in its module."""
    documents: tuple[Json, ...]
    """The job first, then what lies beside it: runtimes, ConfigMaps."""
    entrypoint: tuple[str, ...] = ()
    """Of the published image, as the Dockerfile beside the job says."""


def examples() -> list[Example]:
    """All of the three projects."""
    return [*_of_operator(), *_of_trainer(), *_of_kuberay()]


def sources(module: tuple[str, str]) -> Path:
    """The folder of a module."""
    return module_sources(*module, _CHECKSUMS[module])


def _of_operator() -> Iterator[Example]:
    folder = sources(OPERATOR)
    for file in sorted((folder / "examples/pytorch").rglob("*.yaml")):
        yield from _in_file(file, folder, pytorch_job.KIND, ())


def _of_trainer() -> Iterator[Example]:
    folder = sources(TRAINER)
    files = [*(folder / "manifests/base/runtimes").rglob("*.yaml")]
    files.append(folder / "examples/flux/flux-runtime.yaml")
    runtimes = [d for file in files for d in _documents(file.read_text()) if _is_runtime(d)]
    for file in sorted((folder / "examples").rglob("*.yaml")):
        yield from _in_file(file, folder, train_job.KIND, runtimes)
    for page in sorted((folder / "docs").rglob("*.md")):
        for number, block in enumerate(_BLOCK.findall(page.read_text())):
            documents = _documents(block)
            name = f"{page.relative_to(folder)}#{number}"
            for job in (
                d for d in documents if d.get("kind") in (train_job.KIND, pytorch_job.KIND)
            ):
                yield Example(name, (job, *(d for d in documents if d is not job), *runtimes))


def _of_kuberay() -> Iterator[Example]:
    folder = sources(KUBERAY)
    for file in sorted((folder / "config/samples").rglob("*.yaml")):
        yield from _in_file(file, folder, ray_job.KIND, ())


def _in_file(
    file: Path, folder: Path, kind: str, beside: list[Json] | tuple[()]
) -> Iterator[Example]:
    documents = _documents(file.read_text())
    for job in documents:
        if job.get("kind") == kind:
            others = [d for d in documents if d is not job]
            name = str(file.relative_to(folder))
            yield Example(name, (job, *others, *beside), _entrypoint(file))


def _documents(text: str) -> list[Json]:
    """Empty for what is no YAML: pages have parts of documents."""
    try:
        return [d for d in yaml.safe_load_all(text) if isinstance(d, dict)]
    except yaml.YAMLError:
        return []


def _is_runtime(document: Json) -> bool:
    return document.get("kind") in train_job.RUNTIMES


def _entrypoint(file: Path) -> tuple[str, ...]:
    for folder in (file.parent, file.parent.parent):
        dockerfile = folder / "Dockerfile"
        if dockerfile.exists() and (found := _ENTRYPOINT.search(dockerfile.read_text())):
            return tuple(json.loads(found[1]))
    return ()


def with_script(job: Json, script: Path) -> Json:
    """A converted job that runs another script, with the same arguments."""
    changed = copy.deepcopy(job)
    container = trainer_container(changed)
    rest = container["command"][1:]
    behind = rest[2:] if rest[0] == "-m" else rest[1:]
    container["command"] = ["python", str(script), *behind]
    return changed


def for_cluster(job: Json, scripts: str) -> tuple[Json, list[str]]:
    """A converted job as it runs on the small cluster of the tests: with the script STAND_IN from
    a ConfigMap, in the image of the installation; and the fields that are removed for this.

    Neither has a node the GPUs, CPUs and memory of `resources`, nor is there a registry from which
    `imagePullPolicy` could pull.
    """
    changed = with_script(job, Path("/", scripts, STAND_IN.name))
    container = trainer_container(changed)
    places = {
        "metadata.namespace": changed["metadata"],
        "spec.image": changed["spec"],
        "spec.resources": changed["spec"],
        "imagePullPolicy": container,
    }
    removed = [path for path, holder in places.items() if holder.pop(path.rpartition(".")[2], None)]
    mount = {"name": scripts, "mountPath": f"/{scripts}", "readOnly": True}
    container.setdefault("volumeMounts", []).append(mount)
    volume = {"name": scripts, "configMap": {"name": scripts}}
    changed["spec"]["template"]["spec"].setdefault("volumes", []).append(volume)
    return changed, removed


def trainer_container(job: Json) -> Json:
    """The container of a converted job that trains."""
    containers: list[Json] = job["spec"]["template"]["spec"]["containers"]
    (container,) = (c for c in containers if c["name"] == "trainer")
    return container


def problem_of_run(job: Json, found: Json) -> str:
    """What a run lacks of what its job asks for, by what STAND_IN found; empty when it lacks
    nothing. `job`: with STAND_IN.
    """
    spec, container = job["spec"], trainer_container(job)
    size = spec["replicas"] * spec.get("nprocPerNode", 1)
    ranks = [rank for rank, _ in found["ranks"]]
    if ranks != list(range(size)):
        return f"ranks {ranks} ran, and not {size}"
    if any(losses[-1] >= losses[0] for _, losses in found["ranks"]):
        return f"a loss did not fall: {found['ranks']}"
    if found["arguments"] != container["command"][2:]:
        return f"arguments {found['arguments']} came of {container['command']}"
    given = {variable["name"]: variable.get("value") for variable in container.get("env", ())}
    return str({n: v for n, v in given.items() if found["variables"].get(n) != v} or "")
