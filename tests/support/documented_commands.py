"""The commands that the pages for users have them type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENT = "="
"""Stands for the program of a line that only sets variables of the shell."""
PROGRAMS = ("kubectl", "regroup", "make", "helm", "pip", "source", "rm", "printf", ASSIGNMENT)
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"^[A-Z_]+=(\$\(.*\)|\S*)\s*")
_GENERATED = ("commands.md", "walkthrough.md")
_SHELLS = ("", "bash", "sh", "console")
_PROMPT = "$ "


class Command(NamedTuple):
    """One command of a page, on one line."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def program(self) -> str:
        """What it runs first, without its folder."""
        rest = self.text
        while variable := _VARIABLE.match(rest):
            rest = rest[variable.end() :]
        return rest.split()[0].rpartition("/")[2] if rest else ASSIGNMENT


def commands(*programs: str) -> list[Command]:
    """All commands of these programs in README, below docs and on the chart's page, but for notes
    and generated pages.

    In a block with prompts, only what stands behind one is a command.
    """
    return [found for found in _all() if found.program in (programs or PROGRAMS)]


def first_job(page: Path) -> str:
    """The first block of YAML on a page."""
    return page.read_text().partition("```yaml\n")[2].partition("```")[0]


def commands_of(page: Path) -> list[Command]:
    """Each line of the blocks for a shell on a page."""
    name = str(page.relative_to(ROOT))
    return [Command(name, line, text) for line, text in _lines(page.read_text())]


@cache
def _all() -> tuple[Command, ...]:
    pages = (ROOT / "README.md", *_pages(), ROOT / "charts/regroup/README.md")
    return tuple(command for page in pages for command in commands_of(page))


def _pages() -> list[Path]:
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [p for p in found if p.parent.name != "design" and p.name not in _GENERATED]


def _lines(page: str) -> Iterator[tuple[int, str]]:
    """Each command of a page, with the number of its first line."""
    for block in _BLOCK.finditer(page):
        if block[2] in _SHELLS:
            first = page.count("\n", 0, block.start(3)) + 1
            for offset, text in _joined(block[3].splitlines()):
                yield first + offset, text


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Commands on one line, that may stand on several: up to a quote or a pipe's other end."""
    prompts = any(line.strip().startswith(_PROMPT) for line in lines)
    text, first = "", 0
    for number, line in enumerate(lines):
        shown = re.sub(r"\s+#\s.*$", "", line.strip())
        if not text:
            if prompts and not shown.startswith(_PROMPT):
                continue
            first, shown = number, shown.removeprefix(_PROMPT)
        text = f"{text} {shown}".strip()
        if text.endswith("\\"):
            text = text[:-1].rstrip()
        elif text and not text.endswith("|") and not _is_open(text):
            yield first, text
            text = ""


def _is_open(text: str) -> bool:
    """Whether a quote is not closed yet."""
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False
