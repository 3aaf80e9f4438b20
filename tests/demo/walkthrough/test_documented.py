"""The walk-through types what the pages say."""

from __future__ import annotations

import pytest

from demo.walkthrough import documented
from demo.walkthrough.documented import Documented
from tests.support.documented_commands import commands

ALL = [found for found in vars(documented).values() if isinstance(found, Documented)]


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.text)
def test_a_command_stands_on_its_page(command: Documented) -> None:
    assert (command.page, command.text) in [(found.page, found.text) for found in commands()]


def test_names_of_the_page_become_those_of_the_cluster() -> None:
    command = Documented("page.md", "kubectl trainingjob scale gpt --replicas 4")
    typed = command.typed({"gpt": "sine", "--replicas 4": "--replicas 2"})
    assert typed == "kubectl trainingjob scale sine --replicas 2"
    with pytest.raises(ValueError, match="'POD' is not in"):
        command.typed({"POD": "sine-w0-1"})
