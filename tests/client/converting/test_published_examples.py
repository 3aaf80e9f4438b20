"""The jobs that Kubeflow and KubeRay publish: how many become jobs that are valid, and why the
others do not.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from regroup.converting import train_job
from regroup.converting.conversion import Conversion
from regroup.converting.draft import ConvertOptions
from regroup.converting.source import shown
from tests.support import published_jobs
from tests.support.foreign_jobs import convert_one, problems
from tests.support.published_jobs import STAND_IN, Example
from tests.support.published_tally import Record, record_converted, record_run

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="fetches Go modules")
RUN = (
    "examples/pytorch/simple.yaml",
    "examples/pytorch/cpu-demo/demo.yaml",
    "examples/pytorch/elastic/echo/echo.yaml",
    "config/samples/pytorch-mnist/ray-job.pytorch-mnist.yaml",
)
"""Examples that run here, one of each kind of command."""


@functools.cache
def examples() -> list[Example]:
    return published_jobs.examples()


def convert(example: Example) -> Conversion:
    return convert_one(*example.documents, options=ConvertOptions(entrypoint=example.entrypoint))


def reason(conversion: Conversion) -> str:
    """Why a job was refused; empty when it is valid."""
    if conversion.refusal is not None:
        return f"{shown(conversion.refusal.place)}: {conversion.refusal.text}"
    return "; ".join(problems(conversion))


def test_published_jobs_are_valid_once_converted_or_refused_with_a_reason(
    record_property: Record,
) -> None:
    reasons = {example.name: reason(convert(example)) for example in examples()}
    refused = {name: why for name, why in reasons.items() if why}
    for name, why in reasons.items():
        print(f"{name}: {'refused: ' + why if why else 'valid'}")
        record_converted(record_property, why)
    counts = Counter("refused" if why else "valid" for why in reasons.values())
    assert len(reasons) >= 20
    assert counts["valid"] >= 10
    assert all(": " in why for why in refused.values())


def test_the_runtime_that_is_known_is_the_published_one() -> None:
    file = published_jobs.sources(published_jobs.TRAINER)
    (runtime,) = yaml.safe_load_all(
        (file / "manifests/base/runtimes/torch_distributed.yaml").read_text()
    )
    known = train_job.DEFAULT_RUNTIME
    assert (runtime["kind"], runtime["metadata"]["name"]) == (known["kind"], "torch-distributed")
    assert runtime["spec"] == known["spec"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.ranks
@pytest.mark.parametrize("name", RUN)
def test_a_converted_job_runs_with_a_stand_in_for_its_script(
    tmp_path: Path, name: str, record_property: Record
) -> None:
    (example,) = (example for example in examples() if example.name == name)
    job = published_jobs.with_script(dict(convert(example).job or {}), STAND_IN)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    regroup = Path(sys.executable).with_name("regroup")
    done = subprocess.run(
        [regroup, "run", file, "--plain", "--directory", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout
    (found,) = (tmp_path / "run").rglob("stand-in.json")
    assert published_jobs.problem_of_run(job, json.loads(found.read_text())) == ""
    kind = example.documents[0]["kind"]
    record_run(record_property, "as processes of one machine", kind, name)
