"""The jobs of the examples run to their end on a cluster, exactly as they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long]
EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {
    EXAMPLES / "3-language-models" / "torchrun.yaml",
    *EXAMPLES.glob("7-other-trainers/*.yaml"),
}
"""Jobs that others bring to their end: `test_torchrun`, and where images need libraries of the
reader's own, `tests/client/local/test_other_trainers.py`.
"""
FILES = sorted({*EXAMPLES.glob("*/*.yaml")} - ELSEWHERE)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_the_job_of_an_example_completes(file: Path, installation: Installation) -> None:
    manifest = yaml.safe_load(file.read_text())
    for scripts in config_maps(manifest):
        files = [f"--from-file={path}" for path in sorted(file.parent.glob("*.py"))]
        installation.kubectl("create", "configmap", scripts, "-n", installation.namespace, *files)
    job = installation.start(manifest)
    job.wait_for_condition("Complete", seconds=240)


def config_maps(manifest: dict[str, Any]) -> list[str]:
    """The ConfigMaps that a job mounts: its README makes them of the scripts beside it."""
    pod = manifest["spec"].get("template", {}).get("spec", {})
    return [
        volume["configMap"]["name"] for volume in pod.get("volumes", ()) if "configMap" in volume
    ]
