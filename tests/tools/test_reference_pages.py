"""The generated reference: each field of the definition and each verb has its entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from regroup.cli.command_line import main as regroup
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.kubernetes.advice import WHILE_TRAINING
from regroup_operator.api.crd import spec_schema, status_schema
from regroup_trainer.checkpoint.commands import main as checkpoint
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.documented_commands import ROOT
from tools.reference_pages import OF_WHY, command_page, job_page, reason_page


@pytest.fixture(scope="module")
def page() -> str:
    """The page of commands."""
    return command_page()


def fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Section and name of each field of a schema, but for former names."""
    for name, child in schema.get("properties", {}).items():
        if not child.get("description", "").startswith("Deprecated"):
            yield path, name
        suffix = "[]" if "items" in child else ""
        yield from fields(f"{path}.{name}{suffix}", child.get("items", child))


def test_each_field_of_the_definition_is_described() -> None:
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", job_page(), re.M | re.S))
    expected = [*fields("spec", spec_schema()), *fields("status", status_schema())]
    assert len(expected) > 200
    missing = [
        f"{section}.{name}"
        for section, name in expected
        if f"\n- `{name}` (" not in sections.get(section, "")
    ]
    assert not missing


def test_an_entry_says_type_bounds_and_default() -> None:
    page = " ".join(job_page().split())
    assert "- `globalBatchSize` (integer, 1 to 1,048,576, default `24`): Samples per step" in page
    assert "- `precision` (`fp32` or `bf16`, default `fp32`): " in page
    assert "- `layers` (integer, 1 to 1,024, required): " in page


def test_each_reason_is_explained_once_below_whether_it_heals() -> None:
    page = reason_page()
    found = re.findall(r"^- `(\w+)`: ", page, re.M)
    assert sorted(found) == sorted({*WaitingReason.__members__, *WHILE_TRAINING, *OF_WHY})
    acts, _, itself = page.partition("## Heals: yes")
    assert "`QuotaExceeded`: a quota of the namespace refuses" in acts
    assert "`GatheringWorkers`: there are enough workers" in itself


def verbs(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Each command below one that takes others, with its whole name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for word, below in command.commands.items():
        yield from verbs(below, f"{name} {word}")


def examples_of(command: click.Command, name: str) -> list[str]:
    """The examples of a command's help that are about itself."""
    with click.Context(command, info_name=name) as context:
        _, _, shown = command.get_help(context).partition("Examples:\n")
    return [line for line in shown.splitlines() if name in line]


VERBS = [*verbs(regroup, "regroup"), *verbs(trainingjob, "kubectl trainingjob")]
OWN_HELP = [verb for verb in VERBS if not verb[0].startswith("regroup trainingjob ")]
"""`regroup trainingjob` is `kubectl trainingjob`, whose examples say so."""


@pytest.mark.parametrize(("name", "command"), OWN_HELP, ids=[name for name, _ in OWN_HELP])
def test_each_verb_has_its_help_with_examples(page: str, name: str, command: click.Command) -> None:
    command = checkpoint if name == "regroup checkpoint" else command
    assert examples_of(command, name)
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert f"Usage: {name}" in section


@pytest.mark.parametrize(("name", "command"), [*verbs(checkpoint, "regroup checkpoint")])
def test_verbs_for_checkpoints_have_their_help_with_examples(
    name: str, command: click.Command
) -> None:
    assert examples_of(command, name)


def test_the_page_of_commands_names_no_folder_of_the_machine_that_wrote_it(page: str) -> None:
    assert str(ROOT) not in page
