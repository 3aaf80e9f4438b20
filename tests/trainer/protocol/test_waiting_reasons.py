"""The reasons why a job waits, and the page that says what to do about each and about the usual
messages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from regroup_trainer.protocol.waiting_reasons import WaitingReason

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "concepts" / "waiting.md"
CODE = ("operator/regroup_operator", "trainer/regroup_trainer")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
"""The messages in the page's table, with dots for names and numbers."""


def test_reasons_are_words_as_kubernetes_has_them() -> None:
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", reason.name) for reason in WaitingReason)


def test_the_page_explains_every_reason_in_the_words_of_the_table() -> None:
    entries = re.findall(r"^- `(\w+)`: (.+\n(?:  .+\n)*)", PAGE.read_text(), re.MULTILINE)
    meanings = {name: " ".join(text.split()).partition(". ")[0] for name, text in entries}
    assert len(entries) == len(meanings)
    assert meanings == {reason.name: reason.value for reason in WaitingReason}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The strings of the product, with dots for values; no docstrings."""
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return [text for path in paths for text in strings_of(ast.parse(path.read_text()))]


def strings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(shown(part) for part in node.values)
        elif isinstance(node, ast.Constant):
            yield str(node.value)
        elif not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            yield from strings_of(node)


def shown(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "..."


def test_the_page_has_a_table_of_messages() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_stands_in_the_code(message: str, texts: list[str]) -> None:
    assert [text for text in texts if message in text]
