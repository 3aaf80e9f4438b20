"""Blocks of YAML on the pages for users are what Regroup takes, and those of Python are Python."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from regroup.cli.manifest import read_documents
from regroup.cli.validation import validate
from regroup_operator.api.resource import API_VERSION, KIND
from regroup_operator.api.template_merge import strategic_merge
from tests.support.documented_commands import Block, blocks

TESTED = {
    "docs/tasks/install.md": "tests/chart/test_chart_package.py builds the overlay.",
    "docs/tasks/monitoring.md": (
        "tests/chart has helm install its values, and Prometheus load its files of rules."
    ),
    "docs/reference/names.md": "tests/test_names_reference.py compares it with the code.",
    "docs/start/walkthrough.md": "The walk-through has applied it, and has written the page.",
}
"""Page whose YAML is no part of a TrainingJob -> what else looks at it."""
OF_JOBS = [block for block in blocks("yaml") if block.page not in TESTED]
BASE = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}}}
"""What a job with several workers needs; pages leave it out where they show something else."""
SCRIPT = {
    "template": {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
}


def job_of(shown: dict[str, Any]) -> dict[str, Any]:
    """The job that a page shows, or has a part of: of its spec, its template or its container."""
    if "kind" in shown:
        return shown
    if "command" in shown:
        shown = {"spec": {"containers": [{"name": "trainer", **shown}]}}
    if "containers" in shown.get("spec", {}):
        shown = {"template": shown}
    spec = strategic_merge(BASE, shown.get("spec", shown))
    if "progressPattern" in spec:
        spec = strategic_merge(SCRIPT, spec)
    if "command" not in str(spec):
        spec = strategic_merge({"trainer": {}}, spec)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "gpt"}, "spec": spec}


@pytest.mark.parametrize("block", OF_JOBS, ids=str)
def test_a_block_of_yaml_is_a_valid_job_or_a_part_of_one(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_of(yaml.safe_load(block.text))))
    (document,) = read_documents(file)
    assert validate(document) == []


def test_what_else_looks_at_a_block_is_said_of_pages_that_have_some() -> None:
    assert TESTED.keys() <= {block.page for block in blocks("yaml")}


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_a_block_of_python_can_be_compiled(block: Block) -> None:
    compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
