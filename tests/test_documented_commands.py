"""Every command of the pages for users is one that its program takes, and some test executes it.

`python -m tests.support.command_executions` prints which one.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from regroup.cli.command_line import main as regroup
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup_trainer.checkpoint.commands import main as checkpoint
from tests.support.command_executions import EXECUTORS, NOT_TYPED, described, executions
from tests.support.documented_commands import ROOT, Command, commands, in_sentences

CHART = ROOT / "charts/regroup"
FIRST_PAGE = "docs/start/cluster.md"
SHELL = ("|", "&&", ">")
"""What ends the words of a program on a line."""
FILES = ("job.yaml", "pytorchjob.yaml", "imagenet.yaml", "rayjob.yaml", "trainjob.yaml",
         "runtime.yaml", "train.sbatch", "FILE", "manifests/samples/gpt-demo.yaml")  # fmt: skip
FOLDERS = ("DIRECTORY", "regroup-runs/gpt")


def words(command: Command) -> list[str]:
    """The words behind the program. What may be left out, in brackets, is given here."""
    text = re.sub(r" [NM](?=\]| |$)", " 10", command.text)
    given = shlex.split(text.replace("[", "").replace("]", ""))
    program = next(n for n, word in enumerate(given) if word.endswith(command.program))
    found = given[program + 1 :]
    end = next((n for n, word in enumerate(found) if word in SHELL), len(found))
    return found[:end]


def parse(command: click.Command, given: list[str]) -> None:
    """Read a command line as the program does. Raises click.UsageError."""
    while isinstance(command, click.Group) and given and given[0] in command.commands:
        name, *given = given
        command = (
            checkpoint if command is regroup and name == "checkpoint" else command.commands[name]
        )
    if given != ["--help"]:
        command.make_context(command.name, given)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()


def test_pages_have_commands_of_each_program() -> None:
    found = {command.text.split()[0] for command in commands()}
    assert found >= {"kubectl", "regroup", "make", "helm", "pip"}


@pytest.mark.parametrize("command", commands("regroup"), ids=str)
def test_a_command_line_of_regroup_is_taken(command: Command) -> None:
    parse(regroup, words(command))


PLUGIN = [command for command in commands("kubectl") if " trainingjob " in f"{command.text[7:20]} "]


@pytest.mark.parametrize("command", PLUGIN, ids=str)
def test_a_command_line_of_the_plugin_is_taken(command: Command) -> None:
    _, *given = words(command)
    parse(trainingjob, given)


@pytest.mark.parametrize("command", commands("make"), ids=str)
def test_a_target_of_make_exists(command: Command) -> None:
    _, target, *_ = command.text.split()
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", commands("helm"), ids=str)
def test_a_value_that_is_set_is_one_of_the_chart(command: Command) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for pair in re.findall(r"--set(?:-string)? (\S+)", command.text):
        for setting in pair.split(","):
            found = values
            for key in setting.partition("=")[0].split("."):
                found = found[key]


@pytest.mark.parametrize("command", commands("helm"), ids=str)
def test_a_tag_of_digits_alone_stays_a_tag(command: Command) -> None:
    """A short commit can be one. `--set` makes it a number, which the chart's schema refuses."""
    assert not re.search(r"--set \S*\.tag=", command.text)


OURS = [command for command in commands("pip") if "'." in command.text]


@pytest.mark.parametrize("command", OURS, ids=str)
def test_what_is_installed_is_an_extra_of_the_package(command: Command) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (named,) = re.findall(r"'\.\[([\w,]+)\]'", command.text)  # an index has another regroup
    assert set(named.split(",")) <= extras.keys()


def test_the_first_page_of_a_cluster_makes_what_its_next_commands_need() -> None:
    """On a cluster they are typed in this order (`e2e/test_documented_commands_cluster.py`)."""
    typed = [command.text for command in commands() if command.page == FIRST_PAGE]
    marks = ("helm install", "pip install", "shared-claim.yaml", "doctor", "smallest.yaml", " top")
    places = [next(n for n, text in enumerate(typed) if mark in text) for mark in marks]
    install, plugin, claim, doctor, job, top = places
    assert install < claim < doctor < job < top
    assert plugin < doctor


@pytest.mark.parametrize("command", commands(), ids=str)
def test_a_test_executes_a_command_of_a_page(command: Command) -> None:
    """Or NOT_TYPED says why none does. The walk-through alone is no test."""
    tests = [one for one in executions(command.text) if one.file.startswith("tests/")]
    assert bool(tests) != (command.text in NOT_TYPED), described(command)


def test_a_sentence_has_a_command_where_a_verb_has_what_it_needs() -> None:
    text = """`regroup run` runs it, as `kubectl trainingjob checkpoint` and `kubectl scale` do:
| `kubectl logs
POD` | `make docs` | `make bench NAME=...` | `train.py` | `regroup run job.yaml` |
```yaml
a: `regroup run b.yaml`
```
`regroup/kubectl get x`
"""
    assert list(in_sentences(text)) == [
        (2, "kubectl logs POD"), (3, "make docs"), (3, "regroup run job.yaml"),
        (7, "regroup/kubectl get x"),
    ]  # fmt: skip


def test_what_no_test_executes_stands_on_a_page_and_has_a_reason() -> None:
    assert NOT_TYPED.keys() <= {command.text for command in commands()}
    assert all(reason.endswith(".") for reason in NOT_TYPED.values())


@pytest.mark.parametrize("file", EXECUTORS)
def test_a_file_that_executes_commands_has_one_of_a_page(file: str) -> None:
    found = [c for c in commands() if file in [one.file for one in executions(c.text)]]
    assert found


def test_continuous_integration_runs_what_no_test_types_for_that() -> None:
    makefile = (ROOT / "Makefile").read_text()
    run = re.findall(r"^make (\S+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    for target in run:  # it grows: what a target needs, and what its recipe makes
        (needed, recipe) = re.findall(
            rf"^{target}:([^#\n]*)[^\n]*\n((?:\t.*\n)*)", makefile, re.MULTILINE
        )[0]
        made = re.findall(r"\$\(MAKE\) --jobs 2 ([a-z ]+)", recipe)
        run += [name for name in " ".join([needed, *made]).split() if name not in run]
    said = [text for text, why in NOT_TYPED.items() if "Continuous integration" in why]
    assert {text.removeprefix("make ") for text in said} <= set(run)


@pytest.mark.parametrize(
    "program", ["curl", "docker", "podman", "python", "torchrun", "uv", "wget"]
)
def test_no_page_has_commands_of_a_program_that_no_test_looks_for(program: str) -> None:
    """Else add it to PROGRAMS, so that a test has to execute them."""
    assert not commands(program)
