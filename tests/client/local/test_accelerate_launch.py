"""`regroup run` of a job whose command is one of accelerate: the ranks find its variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from regroup.cli.command_line import main
from tests.support.accelerate_library import library_variables

PROGRAM = Path(__file__).parents[2] / "support/programs/environment.py"
FLAGS = ("--multi_gpu", "--num_processes=2", "--mixed_precision=bf16", "--debug")
CONFIG = {
    "distributed_type": "FSDP",
    "num_machines": 1,
    "num_processes": 2,
    "machine_rank": 0,
    "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True},
}


def write_job(folder: Path, launcher: str, *flags: str) -> Path:
    """A job of one worker; in `env` stands what the flags say otherwise."""
    container = {
        "name": "trainer",
        "command": ["accelerate", "launch", *flags, str(PROGRAM), str(folder)],
        "env": [{"name": "ACCELERATE_MIXED_PRECISION", "value": "fp16"}],
    }
    job = {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "flags"},
        "spec": {"launcher": launcher, "template": {"spec": {"containers": [container]}}},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def run(file: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run the job with warm workers, that have no OMP_NUM_THREADS."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    words = ["run", str(file), "--plain", "--directory", str(file.parent / "run")]
    return CliRunner().invoke(main, words)


def found(folder: Path, expected: dict[str, str]) -> list[dict[str, Any]]:
    """Of what each rank found, the variables that are expected."""
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return [{name: rank.get(name) for name in expected} for rank in ranks]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_the_ranks_find_the_variables_of_the_flags(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = library_variables(FLAGS, monkeypatch)
    done = run(write_job(tmp_path, launcher, *FLAGS), monkeypatch)
    assert done.exit_code == 0, done.output
    assert found(tmp_path, expected) == [expected, expected]


@pytest.mark.slow
def test_the_ranks_find_the_variables_of_a_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"  # the command says where it is from the folder of the job
    file.write_text(yaml.safe_dump(CONFIG))
    flags = ["--config_file=config.yaml", "--mixed_precision=bf16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        expected = library_variables(flags, patch)
    job = write_job(tmp_path, "regroup", *flags)
    content = yaml.safe_load(job.read_text())
    content["spec"]["nprocPerNode"] = 2
    job.write_text(yaml.safe_dump(content))
    done = run(job, monkeypatch)
    assert done.exit_code == 0, done.output
    assert found(tmp_path, expected) == [expected, expected]


@pytest.mark.slow
def test_a_config_file_that_contradicts_the_job_fails_it_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    done = run(write_job(tmp_path, "regroup", "--config_file=config.yaml"), monkeypatch)
    assert done.exit_code == 1
    assert "--config_file config.yaml: num_processes: 2 in all on 1 machines" in done.stderr
    assert "set spec.nprocPerNode" in done.stderr
