"""`regroup convert`: files, standard input, command lines; what it prints, and how it ends."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from regroup.cli.command_line import main
from regroup.cli.convert_command import convert
from tests.support.foreign_jobs import RUNTIME, TRAIN_JOB, marked

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist}
spec:
  elasticPolicy:
    rdzvBackend: etcd
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: i, command: [torchrun, train.py]}]}}
"""
CONFIG_MAP = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\n"
BATCH = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH -p gpu\nsrun torchrun train.py\n"


def run(*arguments: str | Path, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)], input=stdin)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_the_result_is_valid_and_says_what_was_left_out(file: Path, tmp_path: Path) -> None:
    done = run(file)
    assert done.exit_code == 0
    line = "spec.elasticPolicy.rdzvBackend: 'etcd' is left out: the job brings its own rendezvous"
    assert f"{file}:6: {line}" in done.stderr.splitlines()
    assert f"# {line}" in done.stdout.splitlines()
    result = tmp_path / "result.yaml"
    result.write_text(done.stdout)
    checked = CliRunner().invoke(main, ["validate", str(result)])
    assert checked.output == f"{result}: TrainingJob mnist is valid\n"


def test_the_result_can_go_to_a_file(file: Path, tmp_path: Path) -> None:
    done = run(file, "-o", tmp_path / "result.yaml")
    assert (done.exit_code, done.stdout) == (0, "")
    assert yaml.safe_load((tmp_path / "result.yaml").read_text())["metadata"]["name"] == "mnist"
    assert run(file, "-o", tmp_path / "nowhere/result.yaml").exit_code == 1


def test_what_kubectl_writes_is_read_from_standard_input() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(JOB)] * 2}
    done = run("-", stdin=yaml.safe_dump(listed))
    assert done.exit_code == 0
    assert len(list(yaml.safe_load_all(done.stdout))) == 2
    assert "items[1].spec.elasticPolicy.rdzvBackend" in done.stderr


def test_a_runtime_may_be_in_another_file(tmp_path: Path) -> None:
    files = {"job.yaml": TRAIN_JOB, "runtime.yaml": RUNTIME}
    for name, text in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(marked(text)))
    assert run(tmp_path / "job.yaml").exit_code == 1
    done = run(*(tmp_path / name for name in files))
    assert done.exit_code == 0
    assert f"{tmp_path / 'runtime.yaml'}:" in done.stderr


def test_objects_that_are_no_jobs_are_named(file: Path) -> None:
    file.write_text(JOB + CONFIG_MAP)
    done = run(file)
    assert done.exit_code == 0
    assert "ConfigMap code is no job that can be converted: it stays as it is" in done.stderr
    file.write_text(CONFIG_MAP)
    assert run(file).exit_code == 1


def test_a_script_of_sbatch_is_known_by_its_first_lines(tmp_path: Path) -> None:
    file = tmp_path / "train.sbatch"
    file.write_text(BATCH)
    done = run(file, "--image", "my/image", "--name", "gpt")
    assert done.exit_code == 0
    job = yaml.safe_load(done.stdout)
    assert (job["metadata"]["name"], job["spec"]["image"]) == ("gpt", "my/image")
    assert f"{file}:3: -pgpu is left out: use nodeSelector" in done.stderr


def test_a_refused_job_ends_with_1_and_the_others_are_written(file: Path) -> None:
    broken = JOB.replace("torchrun, train.py", "deepspeed, train.py").replace("mnist", "broken")
    file.write_text(f"{JOB}---\n{broken}")
    done = run(file)
    assert done.exit_code == 1
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "mnist"
    (line,) = [line for line in done.stderr.splitlines() if "cannot be converted" in line]
    assert f"{file}: PyTorchJob broken cannot be converted: {file}:" in line


def test_a_job_that_would_not_be_valid_is_refused_with_the_field(file: Path) -> None:
    mount = "image: i, volumeMounts: [{name: x, mountPath: /x}],"
    file.write_text(JOB.replace("image: i,", mount) + "---\n" + JOB.replace("mnist", "other"))
    done = run(file)
    assert done.exit_code == 1
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "other"
    assert "there is no volume 'x'" in done.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [", "cannot be read as YAML"),
        (b"\xff", "no text in UTF-8"),
        (b"a" * (1 << 20) + b"b", "has more than 1048576 bytes"),
        (b"[" * 200, "more than 100 levels"),
        (b"&a [" + b"*a," * 9 + b"]", "stands in what it names"),
        (b"", "there is no job to convert: give PyTorchJob"),
        (b"- 5\n", "document without a kind"),
        (b"kind: PyTorchJob\napiVersion: kubeflow.org/v1\n", "metadata.name: is missing"),
    ],
)
def test_what_cannot_be_read_is_reported_in_a_line(
    file: Path, content: bytes, expected: str
) -> None:
    file.write_bytes(content)
    for done in (run(file), run("-", stdin=content)):
        assert done.exit_code == 1
        assert expected in done.stderr
        assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("arguments", [[], ["FILE", "--", "torchrun", "x.py"], ["nowhere.yaml"]])
def test_a_wrong_command_line_ends_with_2(file: Path, arguments: list[str]) -> None:
    assert run(*(str(file) if a == "FILE" else a for a in arguments)).exit_code == 2


def test_an_entrypoint_is_split_into_words(file: Path) -> None:
    file.write_text(JOB.replace("command: [torchrun, train.py]", "args: ['1']"))
    done = run(file, "--entrypoint", "python '/a b/x.py'")
    (container,) = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "/a b/x.py", "1"]
    assert run(file, "--entrypoint", "'").exit_code == 2


def test_help_has_examples_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pytorchjob.yaml", "trainjob.yaml", "runtime.yaml", "train.sbatch"):
        (tmp_path / name).write_text("")
    shown = run("--help").output
    assert max(map(len, shown.splitlines())) <= 80
    for example in convert.examples:
        assert example in shown
        words = shlex.split(example.partition(" > ")[0].rpartition("| ")[2])
        convert.make_context("convert", words[2:])


def test_the_room_is_imported_when_something_is_converted() -> None:
    program = (
        "import sys, regroup.cli.convert_command; print([m for m in sys.modules if m.startswith("
        "('regroup.converting', 'yaml', 'pydantic'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
