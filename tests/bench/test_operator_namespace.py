"""What needs the network is built before the benchmark enters its network namespace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.operators import __main__ as operators
from bench.operators import programs


class EnteredError(Exception):
    """Stands for the program that starts again."""


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("regroup", ["kwok"]), ("trainer-v2", ["kwok", "jobset", "trainer"])],
)
def test_go_modules_are_built_outside_the_network_namespace(
    monkeypatch: pytest.MonkeyPatch, subject: str, expected: list[str]
) -> None:
    built: list[str] = []

    def build(module: programs.Module, _report: Callable[[str], None]) -> None:
        built.append(module.name)

    def enter(*_command: object) -> None:
        raise EnteredError

    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(programs, "build", build)
    monkeypatch.setattr("os.execvp", enter)
    with pytest.raises(EnteredError):
        operators._enter_namespace((subject,))
    assert built == expected
