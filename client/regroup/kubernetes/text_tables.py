"""Tables and paragraphs of plain text, as kubectl prints them: no colour, no lines. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from regroup_trainer.protocol.message import printable

GAP = "   "


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "", gap: str = GAP
) -> list[str]:
    """The lines of a table. Columns are as wide as what they hold; the last one is not padded."""
    lines = [list(header), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [
        (indent + gap.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
        .rstrip()
        for line in lines
    ]  # fmt: skip


def paragraph(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """The lines of a text, cut at words; `first` stands before the first line."""
    return textwrap.wrap(
        printable(" ".join(text.split())),
        width=max(width, 40),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def facts(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Names and values in two columns. A value may have several lines."""
    given = list(pairs)
    column = max((len(name) for name, _ in given), default=0) + 3
    lines = []
    for name, value in given:
        head = f"{name}:".ljust(column)
        for line in value.splitlines() or [""]:
            lines += paragraph(line, width, " " * column, head) or [head.rstrip()]
            head = " " * column
    return lines


def bullets(texts: Iterable[str], width: int) -> list[str]:
    """The texts as a list, each with a dash, wrapped to lines of `width` columns."""
    return [line for text in texts for line in paragraph(text, width, "    ", "  - ")]
