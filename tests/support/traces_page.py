"""What the page of traces lists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/traces.md"


def spans_made_by(program: str) -> set[str]:
    """Paths of the spans that the page says a program makes."""
    return set(re.findall(rf"^\| `([^`]+)` \| {program} \|", PAGE.read_text(), re.MULTILINE))


def attributes() -> set[str]:
    """All attributes that the page names."""
    return set(re.findall(r"`(regroup\.\w+)`", PAGE.read_text()))


def kinds() -> set[str]:
    """Names of the spans without a parent."""
    (table,) = re.findall(r"^\| trace \|.*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
