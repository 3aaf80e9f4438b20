"""What the first pages have a newcomer type on this machine; your own script with fewer epochs.

The checkpoints of the first run are also those of `docs/tasks/checkpoints.md`, and the web page
shows it.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.documented_commands import ROOT, first_job
from tests.support.opened_page import OpenedPage
from tests.support.optional_packages import needs_re2
from tests.support.page_terminal import PageTerminal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
THIS_MACHINE = ROOT / "docs/start/this-machine.md"
PAGE = ROOT / "docs/start/your-script.md"
EPOCHS = '"60"'
RUN = "regroup-runs/gpt"
SECONDS = 800.0
"""For a run, on a busy machine."""


class FirstRun(NamedTuple):
    """The run of the page about this machine."""

    terminal: PageTerminal
    shown: str


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    folder = tmp_path_factory.mktemp("this-machine")
    (folder / "job.yaml").write_text(first_job(THIS_MACHINE))
    terminal = PageTerminal(folder, {"COLUMNS": "100"})
    return FirstRun(
        terminal, terminal.type("regroup run job.yaml --kill worker=1@step=30", seconds=SECONDS)
    )


def test_the_page_about_this_machine_runs_as_it_stands(first_run: FirstRun) -> None:
    terminal, shown = first_run
    assert "killed worker 1 at step 30" in shown
    assert "completed: 60 steps" in shown
    validated = terminal.type("regroup validate job.yaml")
    assert "job.yaml: TrainingJob gpt is valid" in validated
    assert "60" in terminal.type("regroup checkpoint list regroup-runs/gpt")
    assert "whole" in terminal.type("regroup checkpoint verify regroup-runs/gpt")


def test_the_checkpoints_of_a_folder_are_listed_compared_and_deleted(first_run: FirstRun) -> None:
    """What stands in brackets may be left out."""
    terminal = first_run.terminal
    where, bracket = {"DIRECTORY": RUN}, {"[": "", "]": ""}
    text = "regroup checkpoint list   DIRECTORY [--json]"
    assert "resumable" in terminal.type(text, changes={**where, " [--json]": ""})
    (found,) = json.loads(terminal.type(text, changes={**where, **bracket}))
    assert found["step"] == 60
    text = "regroup checkpoint verify DIRECTORY [--step N]"
    assert "step 60: whole" in terminal.type(text, changes={**where, " N]": " 60", "[": ""})
    text = "regroup checkpoint prune  DIRECTORY --keep-last 2 [--keep-every-steps M] [--dry-run]"
    shown = terminal.type(text, changes={**where, " M]": " 50", **bracket})
    assert shown == "1 stay\n"


def test_a_checkpoint_is_exported(first_run: FirstRun) -> None:
    text = "regroup checkpoint export DIRECTORY --step N --out my-model"
    first_run.terminal.type(text, changes={"DIRECTORY": RUN, "N --": "60 --"})
    made = {path.name for path in (first_run.terminal.folder / "my-model").iterdir()}
    assert made == {"config.json", "model.safetensors"}


def test_the_web_page_shows_the_run_at_a_port_that_is_given(first_run: FirstRun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    text = "regroup ui --no-browser --port 8700"
    with first_run.terminal.running(text, {"8700": port}, signal.SIGTERM) as until:
        page = OpenedPage(re.findall(r"http://\S+", until("token="))[0])
        (job,) = page.read("/api/jobs")["jobs"]
    assert (job["name"], job["step"]) == ("gpt", 60)


def test_the_web_page_opens_in_the_browser(first_run: FirstRun, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    terminal = PageTerminal(first_run.terminal.folder, {"BROWSER": f"{browser} %s"})
    with terminal.running("regroup ui", end=signal.SIGTERM) as until:
        shown = until("token=")
        wait_until("the browser to be opened", opened.exists, seconds=60)
        address = opened.read_text().strip()
        assert address in shown
        assert OpenedPage(address).read("/api/jobs")["jobs"]


@pytest.fixture
def beside_the_script(tmp_path: Path) -> PageTerminal:
    """A shell beside the files that the page about your own script names, and its job."""
    for path in re.findall(r"\]\((\S+\.py)\)", PAGE.read_text()):
        source = PAGE.parent / path
        shutil.copy(source, tmp_path / source.name.replace("ddp_snapshots", "train"))
    write_job(tmp_path, epochs=2)
    return PageTerminal(tmp_path)


def write_job(folder: Path, epochs: int, more: str = "") -> None:
    job = first_job(PAGE)
    assert EPOCHS in job
    (folder / "job.yaml").write_text(job.replace(EPOCHS, f'"{epochs}"') + more)


@needs_re2
def test_your_own_script_runs_and_recovers_as_its_page_says(
    beside_the_script: PageTerminal,
) -> None:
    terminal = beside_the_script
    assert "job.yaml: TrainingJob mine is valid" in terminal.type("regroup validate job.yaml")
    shown = terminal.type("regroup run job.yaml --plain", seconds=SECONDS)
    assert "rank 0: begins at epoch 0" in shown
    assert "completed: 0 recoveries" in shown

    pattern = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    write_job(terminal.folder, epochs=60, more=pattern.removeprefix("spec:\n"))
    again = ("rm -r regroup-runs/mine", "regroup run job.yaml --plain --kill rank=1@step=20")
    shown = terminal.type(*again, seconds=SECONDS)
    assert "rank 0: begins at epoch 0" in shown
    assert "* killed rank 1 at step 20" in shown
    assert "completed: 60 steps" in shown
    assert "1 recovery, 0 lost steps" in shown


def test_the_config_map_of_the_page_has_all_files(beside_the_script: PageTerminal) -> None:
    (made,) = re.findall(r"create configmap mine (.*)", PAGE.read_text())
    named = {word.removeprefix("--from-file=") for word in made.split()}
    assert named == {path.name for path in beside_the_script.folder.glob("*.py")}
