"""The job that train() describes: valid for a cluster, with its code mounted."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, cast

import pytest

from regroup.cli.manifest import Document
from regroup.cli.validation import validate
from regroup.training_client import install_packages
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.job_document import (
    TRUSTED,
    Packages,
    base_document,
    code_object,
    with_code,
)
from regroup.training_client.training_job import PackageIndex, TrainingJob, TrainOptions
from regroup_operator.api.spec import TrainingJobSpec
from tests.support.rendering import main_of, make_worker

COMMAND = ["python", "/regroup/code/main.py"]


def make(packages: Packages | None = None, **options: Any) -> dict[str, Any]:
    base = base_document("gpt", None, cast(TrainOptions, {"workers": 1, **options}))
    job = with_code(base, COMMAND, {"regroup.dev/code": "x"}, packages)
    assert not validate(Document(Path("train"), job))
    return job


def worker_of(job: dict[str, Any]) -> dict[str, Any]:
    """A pod as the operator makes it."""
    fields = {"template": job["spec"]["template"], "trainer": None}
    return make_worker(**fields)


def test_bounds_of_workers() -> None:
    job = make(workers=(2, 4), claim="shared", image="train:1", gpus=8)
    spec = job["spec"]
    assert (spec["replicas"], spec["elasticPolicy"]) == (4, {"minReplicas": 2, "maxReplicas": 4})
    assert spec["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert spec["image"] == "train:1"
    fixed = make(workers=3, claim="shared")["spec"]
    assert fixed["replicas"] == 3
    assert "elasticPolicy" not in fixed


@pytest.mark.parametrize("workers", [0, (3, 2), (0, 1)])
def test_workers_that_cannot_be(workers: Any) -> None:
    with pytest.raises(TrainingClientError, match="give a number from 1, or the fewest"):
        base_document("gpt", None, {"workers": workers})


def test_a_typed_job_says_the_rest() -> None:
    spec = TrainingJobSpec.model_validate(
        {"trainer": {}, "spares": 1, "checkpoint": {"keepLast": 5, "storage": {"emptyDir": {}}}}
    )
    base = base_document("other", TrainingJob("gpt", spec, labels={"team": "a"}), {"gpus": 1})
    assert base["metadata"] == {"name": "other", "labels": {"team": "a"}}
    assert base["spec"] == {
        "trainer": {},
        "spares": 1,
        "checkpoint": {"keepLast": 5, "storage": {"emptyDir": {}}},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }


def test_the_code_is_mounted_read_only() -> None:
    pod = worker_of(make())
    (mount,) = [m for m in main_of(pod)["volumeMounts"] if m["name"] == "code"]
    assert mount == {"name": "code", "mountPath": "/regroup/code", "readOnly": True}
    assert {"name": "code", "configMap": {"name": "gpt-code"}} in pod["spec"]["volumes"]


def test_packages_are_installed_by_a_restricted_init_container_of_the_workers_image() -> None:
    pod = worker_of(make(Packages(["einops", "tqdm>=4"])))
    (installer,) = [c for c in pod["spec"]["initContainers"] if c["name"] == "packages"]
    assert installer["image"] == main_of(pod)["image"]
    assert installer["command"][-2:] == ["einops", "tqdm>=4"]
    security = installer["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert {"name": "PYTHONPATH", "value": "/regroup/packages"} in main_of(pod)["env"]
    of_worker, of_installer = (
        next(m for m in c["volumeMounts"] if m["name"] == "packages")
        for c in (main_of(pod), installer)
    )
    assert of_worker == {**of_installer, "readOnly": True}


def test_an_index_with_a_password_stays_in_its_secret() -> None:
    def variable(index: PackageIndex) -> dict[str, Any]:
        pod = make(Packages(["x"], index))["spec"]["template"]["spec"]
        env: list[dict[str, Any]] = pod["initContainers"][0]["env"]
        return next(entry for entry in env if entry["name"] == "PIP_INDEX_URL")

    assert variable(PackageIndex(url="https://pypi.local/simple"))["value"].startswith("https")
    assert variable(PackageIndex(secret="pip"))["valueFrom"] == {
        "secretKeyRef": {"name": "pip", "key": "index-url"}
    }
    with pytest.raises(ValueError, match="give url, or secret"):
        PackageIndex()


def test_an_index_without_tls_is_trusted_only_where_that_is_said() -> None:
    def variables(index: PackageIndex) -> set[str]:
        pod = make(Packages(["x"], index))["spec"]["template"]["spec"]
        return {entry["name"] for entry in pod["initContainers"][0]["env"]}

    url = "http://devpi.tools:3141/simple"
    trusted = variables(PackageIndex(url=url, trusted=True))
    assert trusted - variables(PackageIndex(url=url)) == {TRUSTED} == {install_packages.TRUSTED}


def test_the_config_map_has_the_name_that_the_job_mounts() -> None:
    made = code_object("gpt", {"main.py": b"\xff\x00"})
    (volume,) = make()["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == made["metadata"]["name"]
    assert base64.b64decode(made["binaryData"]["main.py"]) == b"\xff\x00"
