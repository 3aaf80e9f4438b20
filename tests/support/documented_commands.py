"""The commands and the blocks of code that the pages for users have."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from regroup.cli.command_line import main as regroup
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup_trainer.checkpoint.commands import main as checkpoint

ROOT = Path(__file__).resolve().parents[2]
CHART_PAGE = ROOT / "charts/regroup/README.md"
ASSIGNMENT = "="
"""Stands for the program of a line that only sets variables of the shell."""
PROGRAMS = (
    "kubectl", "regroup", "make", "helm", "pip", "source", "rm", "printf", "git", ASSIGNMENT,
)  # fmt: skip
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
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


class Block(NamedTuple):
    """One block of code of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Block]:
    """All blocks of a language in README, below docs and on the chart's page, but for notes."""
    pages = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "design"]
    every = [ROOT / "README.md", *pages, CHART_PAGE]
    return [found for page in every for found in blocks_of(page) if found.language == language]


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text()
    return [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, found.start()) + 1,
            found[2],
            textwrap.dedent(found[3]),
        )
        for found in _BLOCK.finditer(text)
    ]


def commands(*programs: str) -> list[Command]:
    """All commands of these programs in README, below docs and on the chart's page, but for notes
    and generated pages: of blocks, and whole ones in sentences and tables.

    In a block with prompts, only what stands behind one is a command.
    """
    return [found for found in _all() if found.program in (programs or PROGRAMS)]


def first_job(page: Path) -> str:
    """The first block of YAML on a page."""
    return page.read_text().partition("```yaml\n")[2].partition("```")[0]


def commands_of(page: Path) -> list[Command]:
    """Each line of the blocks for a shell on a page, and each whole command in its sentences."""
    name, text = str(page.relative_to(ROOT)), page.read_text()
    found = sorted({*_lines(text), *in_sentences(text)})
    return [Command(name, line, command) for line, command in found]


@cache
def _all() -> tuple[Command, ...]:
    pages = (ROOT / "README.md", *_pages(), CHART_PAGE)
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


def in_sentences(page: str) -> Iterator[tuple[int, str]]:
    """The same of each command in a sentence or table. What names a program, or a verb of it, is
    none.
    """
    prose = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page)
    for span in _SPAN.finditer(prose):
        text = " ".join(span[1].split())
        if _is_whole(text):
            yield prose.count("\n", 0, span.start()) + 1, text


def _is_whole(text: str) -> bool:
    """Whether it has what its verb needs: a word that is no verb, or a target of make."""
    program, *words = text.split() or [""]
    if program.rpartition("/")[2] not in PROGRAMS or text.endswith(("=", "...")):
        return False
    return (program == "make" and bool(words)) or not _verbs().issuperset(words[1:])


@cache
def _verbs() -> frozenset[str]:
    """Of our programs."""
    groups: list[click.Command] = [regroup, trainingjob, checkpoint]
    found: set[str] = set()
    while groups:
        group = groups.pop()
        if isinstance(group, click.Group):
            found |= group.commands.keys()
            groups += group.commands.values()
    return frozenset(found)


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
