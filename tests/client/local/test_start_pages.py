"""What the first pages have a newcomer type on this machine; your own script with fewer epochs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from regroup_trainer.checkpoint.commands import main as checkpoint
from tests.support.documented_commands import commands
from tests.support.optional_packages import needs_re2

THIS_MACHINE = Path(__file__).parents[3] / "docs/start/this-machine.md"
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


@needs_re2
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


@pytest.mark.timeout(280)
def test_the_page_about_this_machine_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = re.findall(r"```yaml\n(.*?)```", THIS_MACHINE.read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(job)
    monkeypatch.chdir(tmp_path)
    typed = [c.text for c in commands("regroup") if c.page.endswith("/this-machine.md")]
    shown = {}
    for line in typed:
        words = shlex.split(line)[1:]
        program = checkpoint if words[0] == "checkpoint" else main
        done = CliRunner().invoke(program, words[1:] if program is checkpoint else words)
        assert done.exit_code == 0, done.output
        shown[line] = done.output
    validated, run, listed, verified = shown.values()
    assert "job.yaml: TrainingJob gpt is valid" in validated
    assert "killed worker 1 at step 30" in run
    assert "completed: 60 steps" in run
    assert "60" in listed
    assert "whole" in verified
