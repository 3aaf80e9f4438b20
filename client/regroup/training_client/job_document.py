"""The TrainingJob that the arguments of train() describe, and the ConfigMap with its code. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regroup.converting.inline_code import CODE_FOLDER, code_name
from regroup.kubernetes.submission import JobFlags, job_of_flags
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.training_job import PackageIndex, TrainingJob, TrainOptions
from regroup_operator.api.names import DOMAIN, MAIN_CONTAINER
from regroup_operator.api.resource import API_VERSION, KIND, Object
from regroup_operator.api.template_merge import strategic_merge

CODE_FORM = f"{DOMAIN}/code-form"
"""Annotation of a job: in which form the code was sent, and why."""
PACKAGES_FOLDER = "/regroup/packages"
INSTALLER = "regroup-install-packages.py"
TRUSTED = "PACKAGE_INDEX_TRUSTED"
"""As `install_packages` has it, which is sent alone."""
_INDEX_KEY = "index-url"
_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}


@dataclass(frozen=True)
class Packages:
    """What is installed before a worker starts."""

    names: Sequence[str]
    index: PackageIndex | None = None


def base_document(name: str, given: TrainingJob | None, options: TrainOptions) -> Object:
    """The job without its code: the given one, with what the options say besides."""
    flags = _flags(name, options)
    asked = job_of_flags(flags)
    asked["spec"].pop("template")
    base = given.document() if given is not None else {"metadata": {}, "spec": {}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**base["metadata"], "name": name},
        "spec": strategic_merge(base["spec"], asked["spec"]),
    }


def _flags(name: str, options: TrainOptions) -> JobFlags:
    least, most = _bounds(options.get("workers"))
    return JobFlags(
        name=name,
        image=options.get("image"),
        replicas=most,
        min_replicas=least if least != most else None,
        max_replicas=most if least != most else None,
        gpus=options.get("gpus"),
        claim=options.get("claim"),
        command=("main.py",),
    )


def _bounds(workers: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    """The fewest and the most. Raises TrainingClientError."""
    if workers is None:
        return None, None
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= most:
        raise TrainingClientError(
            f"workers: {workers!r}: give a number from 1, or the fewest and the most, as (2, 4)"
        )
    return least, most


def with_code(
    job: Object, command: Sequence[str], annotations: Mapping[str, str], packages: Packages | None
) -> Object:
    """The job with the command, and with the ConfigMap that has its files mounted."""
    template = strategic_merge(
        job["spec"].get("template") or {}, _template(job["metadata"]["name"], command, packages)
    )
    metadata = job["metadata"]
    noted = {**(metadata.get("annotations") or {}), **annotations}
    return {
        **job,
        "metadata": {**metadata, "annotations": noted},
        "spec": {**job["spec"], "template": template},
    }


def _template(name: str, command: Sequence[str], packages: Packages | None) -> Object:
    main: dict[str, Any] = {
        "name": MAIN_CONTAINER,
        "command": list(command),
        "volumeMounts": [_mount("code", CODE_FOLDER)],
    }
    spec: dict[str, Any] = {
        "containers": [main],
        "volumes": [{"name": "code", "configMap": {"name": code_name(name)}}],
    }
    if packages is not None:
        main["env"] = [{"name": "PYTHONPATH", "value": PACKAGES_FOLDER}]
        main["volumeMounts"].append(_mount("packages", PACKAGES_FOLDER))
        spec["volumes"].append({"name": "packages", "emptyDir": {}})
        spec["initContainers"] = [_installer(packages)]
    return {"spec": spec}


def _mount(volume: str, path: str, *, read_only: bool = True) -> Object:
    return {"name": volume, "mountPath": path, "readOnly": read_only}


def _installer(packages: Packages) -> Object:
    """An init container of the workers' own image. A restricted namespace admits it."""
    words = ["python", f"{CODE_FOLDER}/{INSTALLER}", PACKAGES_FOLDER, *packages.names]
    scratch = [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}]
    return {
        "name": "packages",
        "command": words,
        "env": [*scratch, *_index(packages.index)],
        "resources": _RESOURCES,
        "securityContext": _SECURITY,
        "volumeMounts": [
            _mount("code", CODE_FOLDER),
            _mount("packages", PACKAGES_FOLDER, read_only=False),
            _mount("scratch", "/tmp", read_only=False),
        ],
    }


def _index(index: PackageIndex | None) -> list[Object]:
    """The variables by which pip knows its index."""
    if index is None:
        return []
    trusted = [{"name": TRUSTED, "value": "1"}] if index.trusted else []
    if index.secret is None:
        return [{"name": "PIP_INDEX_URL", "value": index.url}, *trusted]
    key = {"secretKeyRef": {"name": index.secret, "key": _INDEX_KEY}}
    return [{"name": "PIP_INDEX_URL", "valueFrom": key}, *trusted]


def code_object(job: str, files: Mapping[str, bytes]) -> Object:
    """The ConfigMap with the code of a job, which does not own it yet."""
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": code_name(job)},
        "binaryData": data,
    }
