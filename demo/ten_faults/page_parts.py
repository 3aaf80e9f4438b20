"""What pages about observed faults and alerts are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from demo.ten_faults.observation import Look

WIDTH = 100
"""The most characters of a line."""
OLDER = "What a run shows is judged by the table of today: this may have been mended since."
"""Behind what was not as it should be."""


def _row_of(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def overview(
    columns: Sequence[str], rows: Iterable[Sequence[str]], verb: str, left: Sequence[str]
) -> str:
    """The table at the head of a page, below the names of what was `left` out, if anything was:
    not tried, for instance.
    """
    text = f"Not {verb} when this page was written: {', '.join(left)}."
    note = wrapped(text) + "\n\n" if left else ""
    return note + "\n".join([_row_of(columns), "|---" * len(columns) + "|", *map(_row_of, rows)])


def in_seconds(seconds: float | None) -> str:
    """A time; `never` where there is none."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def transcript(job: str, look: Look) -> str:
    """What both commands about a job showed at one moment."""
    lines = [
        "```text",
        f"$ kubectl get trainingjob {job}",
        *(line.rstrip() for line in look.line.splitlines()),
        f'$ kubectl trainingjob why {job}; echo "exit code $?"',
        *(line.rstrip() for line in look.why.splitlines()),
        f"exit code {look.exit_code}",
        "```",
    ]
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """A paragraph in lines of at most WIDTH characters, but for words that are longer."""
    return "\n".join(_lines(text.split()))


def _lines(words: Sequence[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
