"""Writes down what was typed and what it printed, as a page of Markdown. Pure."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

WIDTH = 100
FIRST, LAST = 8, 6
"""Lines of a long output that are kept."""
SECRET = re.compile(r"(http://127\.0\.0\.1:\d+/\?)\S+")
"""The address of the web page, with its token."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass
class Transcript:
    """The page so far."""

    hidden: dict[str, str] = field(default_factory=dict)
    """Text that belongs to this machine -> what stands in its place."""
    parts: list[str] = field(default_factory=list)

    def heading(self, title: str) -> None:
        self.parts.append(f"## {title}")

    def words(self, text: str) -> None:
        """A paragraph."""
        self.parts.append("\n".join(textwrap.wrap(text, WIDTH, break_long_words=False,
                                                  break_on_hyphens=False)))  # fmt: skip

    def typed(self, command: str, output: str) -> None:
        """A command, and the beginning and the end of what it printed."""
        shown = [*command_lines(self._clean(command)), *shortened(self._clean(output))]
        self._fenced("console", shown)

    def block(self, language: str, text: str) -> None:
        """A file, a cell of a notebook or its output."""
        lines = [part for line in self._clean(text).splitlines() for part in wrapped(line)]
        self._fenced(language, lines)

    def picture(self, path: str, alternative: str) -> None:
        self.parts.append(f"![{alternative}]({path})")

    def checked(self, sentence: str) -> None:
        """What the script has compared."""
        self.words(f"*Checked: {sentence}.*")

    def markdown(self) -> str:
        """All of it."""
        return "\n\n".join(self.parts) + "\n"

    def _fenced(self, language: str, lines: list[str]) -> None:
        self.parts.append("\n".join([f"```{language}", *lines, "```"]))

    def _clean(self, text: str) -> str:
        for own, other in self.hidden.items():
            text = text.replace(own, other)
        return SECRET.sub(r"\1...", ESCAPES.sub("", text))


def command_lines(command: str) -> list[str]:
    """A command behind a prompt, over several lines where it is long. An option keeps its value,
    where one line has room for both.
    """
    kept = re.sub(r"( --[\w-]+) (?=[^-]|- )", "\\1\N{NO-BREAK SPACE}", f"$ {command}")
    broken = textwrap.wrap(kept, WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    first, *others = [
        part
        for line in broken
        for part in (line.split("\N{NO-BREAK SPACE}") if len(line) > WIDTH - 6 else [line])
    ]
    lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in (first, *indented(others))]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def indented(lines: list[str]) -> list[str]:
    """Lines that follow another."""
    return [f"    {line}" for line in lines]


def shortened(output: str) -> list[str]:
    """The lines of an output, without those in the middle of a long one."""
    lines = [part for line in output.rstrip().splitlines() for part in wrapped(line.rstrip())]
    if len(lines) <= FIRST + LAST + 1:
        return lines
    return [*lines[:FIRST], "...", *lines[-LAST:]]


def wrapped(line: str) -> list[str]:
    """A line that fits the page."""
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH - 4, subsequent_indent="    ", break_on_hyphens=False)
