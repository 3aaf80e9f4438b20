"""A job and the ConfigMap with its code in one file: what is refused, and how it runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from regroup.cli import command_line
from regroup.cli.command_line import main
from regroup.cli.job_code import job_in_folder, write_code
from regroup.local.local_run import LocalRun
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import user_script
from regroup_trainer.protocol.job_status import Outcome

CODE = "import os, sys\nprint('code of rank', os.environ['RANK'], sys.argv[1:])"
PYTORCH_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "mnist"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "pytorch",
                                "image": "i",
                                "command": ["python", "-c", CODE, "--lr", "1"],
                            }
                        ]
                    }
                }
            }
        }
    },
}


def regroup(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What `regroup convert` writes."""
    source, result = tmp_path / "pytorchjob.yaml", tmp_path / "job.yaml"
    source.write_text(yaml.safe_dump(PYTORCH_JOB))
    done = regroup("convert", source, "-o", result)
    assert done.exit_code == 0, done.output
    assert "create both" in done.stderr
    return result


def documents(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config_map, job = yaml.safe_load_all(file.read_text())
    return config_map, job


def test_what_convert_writes_is_valid(file: Path) -> None:
    assert regroup("validate", file).output == (
        f"{file}: TrainingJob mnist is valid, and so is ConfigMap mnist-code\n"
    )


def put(target: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        target = target[int(parent) if parent.isdigit() else parent]
    target[last] = value


@pytest.mark.parametrize(
    ("of", "path", "value", "expected"),
    [
        ("map", "kind", "Secret", "kind: must be TrainingJob, got 'Secret'"),
        ("map", "binaryData", {"a": "b"}, "binaryData: unknown field: known here are"),
        ("map", "metadata.finalizers", ["a"], "metadata.finalizers: unknown field"),
        ("map", "metadata", "x", "metadata: must be an object, got 'x'"),
        ("map", "metadata.name", "A b", "metadata.name: 'A b' is no valid name"),
        ("map", "metadata.name", "other", "metadata.name: container trainer of the job mounts no"),
        (
            "map",
            "metadata.namespace",
            "a",
            "metadata.namespace: is 'a', and that of the job 'absent",
        ),
        ("map", "data", {}, "data: must have the files of the code"),
        ("map", "data", {"../x.py": "a"}, "data: '../x.py' is no name for a file"),
        ("map", "data", {"x.py": 7}, "data.x.py: must be a text, got 7"),
        ("job", "spec.template.spec.volumes", [], "spec.template"),
        ("job", "kind", "Job", "kind: must be TrainingJob, got 'Job'"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_name(
    file: Path, of: str, path: str, value: Any, expected: str
) -> None:
    config_map, job = documents(file)
    put(config_map if of == "map" else job, path, value)
    file.write_text(yaml.safe_dump_all([config_map, job]))
    done = regroup("validate", file)
    assert done.exit_code == 1
    assert expected in done.stderr
    assert regroup("run", file).exit_code == 1


def test_one_config_map_stands_beside_one_job(file: Path) -> None:
    config_map, job = documents(file)
    for together, message in (
        ([config_map], "here are 0"),
        ([config_map, job, job], "here are 2"),
        ([config_map, config_map, job], "is a second ConfigMap"),
    ):
        file.write_text(yaml.safe_dump_all(together))
        done = regroup("validate", file)
        assert done.exit_code == 1
        assert message in done.stderr


def test_a_local_run_finds_the_files_in_its_own_folder(file: Path, tmp_path: Path) -> None:
    config_map, job = documents(file)
    folder = write_code(config_map, tmp_path)
    assert folder == write_code(config_map, tmp_path)
    changed = {**config_map, "data": {"main.py": "pass\n"}}
    assert folder != write_code(changed, tmp_path)
    assert (folder / "main.py").read_text() == f"{CODE}\n"
    local = TrainingJobSpec.model_validate(job_in_folder(job, config_map, folder)["spec"])
    script = user_script(local.template)
    assert script is not None
    assert script.arguments == (f"{folder}/main.py", "--lr", "1")


@pytest.mark.parametrize("field", ["items", "subPath"])
def test_a_local_run_mounts_all_files_or_none(file: Path, tmp_path: Path, field: str) -> None:
    config_map, job = documents(file)
    pod = job["spec"]["template"]["spec"]
    if field == "items":
        pod["volumes"][0]["configMap"]["items"] = [{"key": "main.py", "path": "a.py"}]
    else:
        pod["containers"][0]["volumeMounts"][0]["subPath"] = "main.py"
    file.write_text(yaml.safe_dump_all([config_map, job]))
    done = regroup("run", file, "--directory", tmp_path / "run")
    assert done.exit_code == 1
    assert "leave out items and subPath" in done.output


def test_run_writes_the_code_before_it_starts_a_process(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def play(local: LocalRun, _plain: bool) -> Outcome:
        started.append(Path(local.desired.script[0]))
        return Outcome(result="completed", message="it ended well")

    monkeypatch.setattr(command_line, "_play", play)
    done = regroup("run", file, "--directory", tmp_path / "run")
    assert done.exit_code == 0, done.output
    (script,) = started
    assert script.is_relative_to(tmp_path / "run/code")
    assert script.read_text() == f"{CODE}\n"


@pytest.mark.long
@pytest.mark.ranks
def test_the_code_of_a_converted_job_runs_here(file: Path, tmp_path: Path) -> None:
    done = regroup("run", file, "--directory", tmp_path / "run", "--plain")
    assert done.exit_code == 0, done.output
    assert "code of rank 0 ['--lr', '1']" in done.output
