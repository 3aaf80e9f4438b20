"""The jobs of a soak are ones that Regroup takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from regroup.cli.command_line import main
from soak.jobs import SHAPES, SPARE_RESTARTS, UNDISTURBED, manifest, undisturbed
from soak.kinds import JOBS


def test_every_kind_of_job_has_a_shape() -> None:
    assert {kind.name for kind in JOBS} == set(SHAPES)


@pytest.mark.parametrize(
    "described",
    [*(manifest("any", kind) for kind in SHAPES), *(undisturbed("any", p) for p in UNDISTURBED)],
    ids=[*SHAPES, *(f"undisturbed {program}" for program in UNDISTURBED)],
)
def test_a_job_is_valid(described: object, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(described))
    done = CliRunner().invoke(main, ["validate", str(file)])
    assert done.exit_code == 0, done.output


def test_some_jobs_have_budgets_which_faults_that_are_counted_rightly_do_not_use_up() -> None:
    faults = ["rank-killed", "node-power-cut", "node-frozen", "rank-killed", "volume-full"]
    spec = manifest("any", "ddp", faults)["spec"]
    assert spec["restartPolicy"]["maxRestarts"] == 2 + SPARE_RESTARTS
    assert spec["restartPolicy"]["maxHangRestarts"] == 1 + SPARE_RESTARTS
    assert "nodeFailurePolicy" not in spec, "nodes that fail are avoided, as by default"
    assert manifest("any", "hsdp", faults)["spec"]["restartPolicy"]["maxRestarts"] == -1
    assert {shape.bounded for shape in SHAPES.values()} == {True, False}


def test_the_undisturbed_run_of_a_program_does_not_depend_on_budgets() -> None:
    """Its manifest is a part of the key by which hours of it are cached."""
    assert undisturbed("any", "gpt")["spec"]["restartPolicy"]["maxRestarts"] == -1
