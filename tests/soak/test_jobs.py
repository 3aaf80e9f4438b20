"""The jobs of a soak are ones that Regroup takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from regroup.cli.command_line import main
from soak.jobs import SHAPES, UNDISTURBED, manifest, undisturbed
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
