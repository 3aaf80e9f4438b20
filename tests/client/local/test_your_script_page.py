"""What docs/start/your-script.md has a newcomer type, with fewer epochs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main

PAGE = Path(__file__).parents[3] / "docs/start/your-script.md"
EPOCHS = '"60"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page names, and its job."""
    text = PAGE.read_text()
    for path in re.findall(r"\]\((\S+\.py)\)", text):
        source = PAGE.parent / path
        shutil.copy(source, tmp_path / source.name.replace("ddp_snapshots", "train"))
    job, pattern = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[:2]
    assert EPOCHS in job
    shown = job.replace(EPOCHS, '"12"') + pattern.removeprefix("spec:\n")
    (tmp_path / "job.yaml").write_text(shown)
    return tmp_path


@pytest.mark.timeout(280)
def test_the_page_runs_as_it_stands_with_its_kill(folder: Path) -> None:
    command = ["run", str(folder / "job.yaml"), "--plain", "--directory", str(folder / "run")]
    done = CliRunner().invoke(main, [*command, "--kill", "rank=1@step=2"])
    assert done.exit_code == 0, done.output
    assert "rank 0: begins at epoch 0" in done.output
    assert "* killed rank 1 at step 2" in done.output
    assert "completed: 12 steps" in done.output


def test_the_config_map_of_the_page_has_all_files(folder: Path) -> None:
    (made,) = re.findall(r"create configmap mine (.*)", PAGE.read_text())
    named = {word.removeprefix("--from-file=") for word in made.split()}
    assert named == {path.name for path in folder.glob("*.py")}
