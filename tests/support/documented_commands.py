"""The commands that the pages for users have them type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("kubectl", "regroup", "make", "helm", "pip", "source")
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_GENERATED = ("commands.md", "walkthrough.md")
_SHELLS = ("", "bash", "sh", "console")


class Command(NamedTuple):
    """One command of a page, on one line."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands(*programs: str) -> list[Command]:
    """All commands of these programs in README and below docs, but for notes and generated pages.

    In a block with prompts, only what stands behind one is a command.
    """
    return [
        Command(str(page.relative_to(ROOT)), line)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if page.parent.name != "design" and page.name not in _GENERATED
        for line in _lines(page.read_text())
        if line.split()[0].rpartition("/")[2] in (programs or PROGRAMS)
    ]


def _lines(page: str) -> Iterator[str]:
    for _, language, block in _BLOCK.findall(page):
        if language not in _SHELLS:
            continue
        joined = re.sub(r"\\\n\s*", "", block).splitlines()
        shown = [line.strip() for line in joined]
        typed = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")] or shown
        for line in typed:
            if text := re.sub(r"\s+#\s.*$", "", line).strip():
                yield text
