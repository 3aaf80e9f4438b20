"""The page of the events, compared with the events that the code makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/events.md"
COORDINATOR = "trainer/regroup_trainer/coordinator"
OPERATOR = "operator/regroup_operator"
ELSEWHERE = {
    "controller/internal_error.py": {("InternalError", "Warning"), ("StatusRefused", "Warning")},
    "controller/job_events.py": set(),  # events that others have made
    "decide/waiting.py": set(),  # the reasons have a page of their own
}
"""Modules whose events have a name that is not written beside the call -> their events."""

ENDS = {("Suspended", "Normal"), ("Completed", "Normal"), ("Failed", "Warning")}
"""Events of the operator that are listed with the coordinator's, which makes them too."""


def listed(section: str) -> set[tuple[str, str]]:
    """Names and types in a section of the page."""
    (content,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return set(re.findall(r"^- `(\w+)` \((Normal|Warning)\): ", content, re.M))


def calls(folder: str, *names: str) -> Iterator[tuple[Path, list[ast.expr]]]:
    """The arguments of each call of such a function or method, with its module."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in names:
                    yield path, node.args


def text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_the_events_of_the_coordinator_are_listed() -> None:
    """Also where one of two names is chosen in the call."""
    made = {
        (name, text(arguments[3]) if len(arguments) > 3 else "Normal")
        for _, arguments in calls(COORDINATOR, "emit", "emit_rarely")
        for name in map(text, ast.walk(arguments[1]))
        if name is not None
    }
    assert made == listed("The workers and the steps")


def test_the_events_of_the_operator_are_listed() -> None:
    made: set[tuple[str | None, str | None]] = set()
    for path, arguments in calls(OPERATOR, "Event"):
        elsewhere = ELSEWHERE.get(str(path.relative_to(ROOT / OPERATOR)))
        if arguments:  # those of asyncio have none
            kind, reason = arguments[:2]
            made |= {(text(reason), text(kind))} if elsewhere is None else elsewhere
    assert made - ENDS == listed("The pods and the nodes")
