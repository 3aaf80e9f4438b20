"""What train() refuses before anything is sent, and how late it imports."""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regroup
from regroup import (
    CodeError,
    TrainingClient,
    TrainingClientError,
    TrainingJob,
    TrainingJobSpec,
)
from regroup.training_client.job_document import INSTALLER, Packages, base_document
from regroup.training_client.kubernetes_backend import KubernetesBackend
from regroup.training_client.local_backend import LocalBackend
from regroup.training_client.sent_code import CODE_LIMIT, code_of_function, code_of_script
from regroup.training_client.training_job import TrainOptions
from tests.support.kube_api import ROOT


def noop(lr: float = 0.1) -> None:
    pass


@pytest.fixture
def client(tmp_path: Path) -> TrainingClient:
    return TrainingClient(kubeconfig=tmp_path / "none")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "func: is missing: give a function, script= or job="),
        ({"func": noop, "script": "a.py"}, "func and script: give one of them"),
        ({"func": 1}, "func: 1 cannot be called: give a function"),
        ({"script": "a.py", "func_args": {"a": 1}}, "func_args: there is no func or script"),
        ({"job": TrainingJob("a", {}), "packages": ["x"]}, "packages: there is no func or script"),
        ({"func": noop, "python": "3"}, "python: '3' is no minor version"),
        ({"func": noop, "workers": 2}, r"checkpoint.storage: needed .* \(claim= names one\)"),
        ({"func": noop, "name": "A"}, "metadata.name: 'A' is no valid name: use lower-case"),
        ({"job": TrainingJob("a", {"replicas": 1})}, "trainer: is missing"),
        ({"func": noop}, "none: does not exist: give a file with --kubeconfig"),
    ],
)
def test_what_is_wrong_is_reported_with_what_to_do(
    client: TrainingClient, given: dict[str, Any], why: str
) -> None:
    with pytest.raises((TrainingClientError, regroup.ClusterError), match=why):
        client.train(**given)


def test_an_unknown_argument_is_named(client: TrainingClient) -> None:
    with pytest.raises(TypeError, match=r"train\(\) has no argument worker: known are claim, "):
        client.train(noop, worker=2)  # type: ignore[call-arg]


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="backend: 'ray': give 'kubernetes' or 'local'"):
        TrainingClient("ray")  # type: ignore[arg-type]


def test_the_client_of_kubernetes_is_an_extra(
    client: TrainingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrainingClientError, match=r"pip install '\.\[kubernetes\]'"):
        client.train(noop)


def test_a_function_that_must_be_pickled_needs_an_extra(
    client: TrainingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CodeError, match=r"pip install '\.\[client\]'"):
        client.train(lambda: None)


def test_local_packages_must_be_installed(tmp_path: Path) -> None:
    local = TrainingClient("local", directory=tmp_path)
    with pytest.raises(TrainingClientError, match="pip install 'nobody-has-this>=1'"):
        local.train(noop, packages=["pydantic>=2", "nobody-has-this>=1"])
    with pytest.raises(TrainingClientError, match="job x: not started here, known are: none"):
        local.job("x")


def test_nothing_is_written_for_a_local_job_that_is_refused(tmp_path: Path) -> None:
    local = TrainingClient("local", directory=tmp_path / "runs")
    with pytest.raises(TrainingClientError, match=r"'\.\./x' is no valid name"):
        local.train(noop, name="../x")
    assert list(tmp_path.iterdir()) == []


def test_only_a_cluster_bounds_the_size_of_code(client: TrainingClient, tmp_path: Path) -> None:
    """No ConfigMap holds the code of a local job."""
    script = tmp_path / "train.py"
    script.write_text("#" * (CODE_LIMIT + 1))
    with pytest.raises(CodeError, match="has 921,601 bytes"):
        client.train(script=script)
    job, code = base_document("a", None, {}), code_of_script(script, ())
    spec = LocalBackend(tmp_path).add_code(job, code, None)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", str(tmp_path / "a/code/train.py")]


def test_import_regroup_loads_nothing_else() -> None:
    script = (
        "import sys, json, regroup; dir(regroup); print(json.dumps(sorted({m.partition('.')[0] for "
        "m in sys.modules} & {'pydantic', 'click', 'aiohttp', 'rich', 'kubernetes', 'yaml'})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


def test_without_torch_weights_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regroup.training_client.local_job import LocalJob

    job = LocalJob("a", TrainingJobSpec.model_validate({"trainer": {}}), tmp_path, tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    typed = r"type pip install '\.\[trainer\]' in a clone of Regroup"
    with pytest.raises(TrainingClientError, match=f"torch cannot be found: {typed}"):
        job.load_state_dict()


def test_every_name_that_is_exported_can_be_imported() -> None:
    for name in regroup._EXPORTED:
        assert getattr(regroup, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = regroup.Trainer


def test_type_checkers_read_the_types_of_what_is_exported() -> None:
    for package in ("regroup", "regroup_operator", "regroup_trainer"):
        assert (importlib.resources.files(package) / "py.typed").is_file()


def test_the_page_shows_all_that_there_is() -> None:
    page = (ROOT / "docs/tasks/python-client.md").read_text()
    methods = [name for name in vars(regroup.Job) if not name.startswith("_") and name != "code"]
    assert [name for name in TrainOptions.__annotations__ if f"`{name}`" not in page] == []
    assert [name for name in methods if f"`job.{name}" not in page] == []


def test_the_installer_goes_with_the_code_only_where_it_is_used(tmp_path: Path) -> None:
    from regroup.training_client import kubernetes_backend

    code = code_of_function(noop, {}, None, None)
    for packages in (None, Packages(["x"])):
        job = KubernetesBackend().add_code(base_document("a", None, {}), code, packages)
        assert job["metadata"]["annotations"]["regroup.dev/code-form"] == code.explanation
        assert (INSTALLER in kubernetes_backend._files_of(job, code)) is (packages is not None)


def test_the_job_says_which_python_has_pickled_its_function() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for arguments, python in (({}, None), ({"lr": noop}, here)):
        code = code_of_function(noop, arguments, None, None)
        job = KubernetesBackend().add_code(base_document("a", None, {}), code, None)
        assert job["metadata"]["annotations"].get("regroup.dev/python") == python
