"""Every example is explained, valid, and runs on this machine as its README says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regroup.cli.manifest import read_documents
from regroup.cli.validation import validate
from tests.examples.local_commands import LOCAL_COMMANDS, LocalCommand
from tests.support.documented_commands import commands_of
from tests.support.optional_packages import needs_re2

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(
    path for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
)
FILES = [file for folder in FOLDERS for file in sorted(folder.glob("*.yaml"))]
PROGRAMS = ("python", "torchrun", "regroup")
"""That a README runs on this machine."""
SECONDS = 240
"""Longer than any command takes on a busy machine."""
NO_FRAME = "<no Python frame>"
"""What a report of a crash has of a thread that runs no Python."""


def named(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_an_example_has_a_readme_and_a_job(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# ")
    assert list(folder.glob("*.yaml")), "an example shows at least one TrainingJob"
    assert f"]({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text(), (
        "examples/README.md does not list it"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_the_commands_of_a_readme_name_files_that_exist(folder: Path) -> None:
    blocks = re.findall(
        r"^```(?:console|bash)?\n(.*?)^```",
        (folder / "README.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    words = [word.rpartition("=")[2] for block in blocks for word in block.split()]
    named = {word for word in words if re.fullmatch(r"[\w./-]+\.(py|yaml)", word)}
    missing = [name for name in named if not (folder / name).exists()]
    assert not missing


def subject(command: str) -> tuple[str, str]:
    """The program of a command line, and the file that it runs or its first argument."""
    words = shlex.split(command.removeprefix("env "))
    program, *rest = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    files = (word for word in rest if re.fullmatch(r"[\w-]+\.(py|yaml)", word))
    return program, next(files, rest[0])


def test_the_subject_of_a_command_is_what_it_runs() -> None:
    assert subject("env A={tmp} torchrun --nproc-per-node=2 a.py --b c.png") == ("torchrun", "a.py")
    assert subject("regroup plan --nodes 8") == ("regroup", "plan")


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_each_command_of_a_readme_for_this_machine_is_run_by_a_test(folder: Path) -> None:
    """The jobs of `regroup run` alone may run on a cluster instead, as they are printed there."""
    executed = {subject(row.command) for row in LOCAL_COMMANDS if row.example == folder.name}
    executed |= {("regroup", file.name) for file in folder.glob("*.yaml")}  # e2e/test_examples.py
    found = [subject(command.text) for command in commands_of(folder / "README.md")
             if command.program in PROGRAMS]  # fmt: skip
    assert not set(found) - executed


@pytest.mark.parametrize("file", FILES, ids=named)
def test_a_job_of_an_example_is_valid(file: Path) -> None:
    documents = read_documents(file)
    assert documents
    assert [str(problem) for document in documents for problem in validate(document)] == []


def marks(row: LocalCommand) -> list[pytest.MarkDecorator]:
    files = [word for word in row.command.split() if word.endswith(".yaml")]
    has_pattern = any("progressPattern" in (EXAMPLES / row.example / f).read_text() for f in files)
    return [
        *([] if row.mark == "quick" else [getattr(pytest.mark, row.mark)]),
        *([needs_re2] if has_pattern else []),
    ]


ROWS = [
    pytest.param(
        row,
        marks=marks(row),
        id=f"{row.example}: {row.command}",
    )
    for row in LOCAL_COMMANDS
]


def has_done_its_work(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a command ended well.

    Now and then PyTorch aborts a rank in the tear-down of gloo, after the script's last line, and
    torchrun calls that a failure (docs/design/0011). No frame of Python is left then.
    """
    return done.returncode == 0 or (done.args[0] == "torchrun" and NO_FRAME in done.stderr)


def test_an_abort_after_the_last_line_of_a_script_is_none_of_an_example() -> None:
    report = "Fatal Python error: Aborted\n\nThread 0x7 (most recent call first):\n  "
    aborted = subprocess.CompletedProcess(["torchrun"], 1, "", report + NO_FRAME)
    assert has_done_its_work(aborted)
    in_a_step = report + 'File "before.py", line 31 in main'
    assert not has_done_its_work(subprocess.CompletedProcess(["torchrun"], 1, "", in_a_step))


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("row", ROWS)
def test_an_example_runs_here(row: LocalCommand, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    done = subprocess.run(
        shlex.split(row.command.format(tmp=tmp_path)),
        cwd=EXAMPLES / row.example,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert has_done_its_work(done), done.stdout + done.stderr
    rest = done.stdout
    for words in row.prints:
        _, found, rest = rest.partition(words)
        assert found, f"{words!r} is missing in\n{done.stdout}\n{done.stderr}"
