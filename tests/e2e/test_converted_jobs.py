"""Jobs that Kubeflow and KubeRay publish, and command lines of torchrun and srun, run on a cluster
once `regroup convert` has converted them: in our image, with a stand-in for their script.
"""

from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from regroup.converting.conversion import Conversion, convert_command
from regroup.converting.draft import ConvertOptions
from tests.support import published_jobs
from tests.support.foreign_jobs import convert_one, problems
from tests.support.published_jobs import STAND_IN, for_cluster, problem_of_run
from tests.support.published_tally import Record, record_run

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]
OPTIONS = ConvertOptions(claim="shared", name="by-command")
PUBLISHED = {
    "examples/pytorch/simple.yaml": "PyTorchJob",
    "examples/yaml/05-multi-step.yaml": "TrainJob",
    "config/samples/pytorch-mnist/ray-job.pytorch-mnist.yaml": "RayJob",
}
"""Published job -> its kind. The TrainJob brings a runtime, and code that becomes a ConfigMap; the
RayJob brings variables.
"""
COMMANDS = (
    "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-endpoint=host:29500 train.py --epochs 5",
    "srun -N 2 --gpus-per-node 8 torchrun train.py",
)
SCRIPTS = "stand-in"


@pytest.mark.skipif(shutil.which("go") is None, reason="fetches Go modules")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_job_runs_to_its_end(
    name: str, installation: Installation, record_property: Record
) -> None:
    (example,) = (e for e in published_jobs.examples() if e.name == name)
    assert example.documents[0]["kind"] == PUBLISHED[name]
    note = run(installation, convert_one(*example.documents, options=OPTIONS))
    record_run(record_property, "on a cluster, in our image", PUBLISHED[name], f"{name}: {note}")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_runs_to_its_end(
    line: str, installation: Installation, record_property: Record
) -> None:
    note = run(installation, convert_command(shlex.split(line), OPTIONS))
    record_run(record_property, "on a cluster, in our image", "command line", f"{line}: {note}")


def run(installation: Installation, conversion: Conversion) -> str:
    """Run a converted job on two workers; returns what ran, and what was removed for this."""
    assert conversion.job is not None and problems(conversion) == []
    job, removed = for_cluster(dict(conversion.job), SCRIPTS)
    assert job["spec"]["replicas"] == 2
    kubectl, here = installation.kubectl, ("-n", installation.namespace)
    kubectl("create", "configmap", SCRIPTS, f"--from-file={STAND_IN}", *here)
    if conversion.config_map is not None:
        kubectl("apply", "-f", "-", *here, stdin=json.dumps(conversion.config_map))
    started = installation.start(job)
    started.wait_for_condition("Complete", seconds=240)
    found = json.loads((installation.volume(started).folder / "stand-in.json").read_text())
    assert problem_of_run(job, found) == ""
    return f"{len(found['ranks'])} ranks; without {', '.join(removed) or 'changes beside these'}"
