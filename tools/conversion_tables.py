"""Writes the tables of `regroup convert` into the pages about moving to Regroup: each field of a
source, and what becomes of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from regroup.converting import pod_template, pytorch_job, ray_job, slurm_options, train_job
from regroup.converting.launch_command import TORCHRUN_ROWS
from regroup.converting.source import Row

PAGES = Path(__file__).resolve().parents[1] / "docs/tasks"
TABLES: dict[str, Sequence[Row]] = {
    "PyTorchJob": pytorch_job.ROWS,
    "TrainJob": train_job.ROWS,
    "TrainingRuntime": train_job.RUNTIME_ROWS,
    "RayJob": ray_job.ROWS,
    "pods": pod_template.ROWS,
    "torchrun": TORCHRUN_ROWS,
    "Slurm": slurm_options.ROWS,
}
"""Name of a table in a page -> its rows."""
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 48
"""Most characters of a field."""


def with_tables(page: str) -> str:
    """A page with its tables as they are now. Raises KeyError for an unknown table."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_table(TABLES[found[2]])}\n{found[3]}", page)


def _table(rows: Sequence[Row]) -> str:
    taken = [row for row in rows if row.target]
    left = [row for row in rows if not row.target]
    return "\n".join([*_lines(taken, "becomes"), "", *_lines(left, "is left out")]) + "\n"


def _lines(rows: Sequence[Row], title: str) -> Iterator[str]:
    if title == "becomes":
        yield f"| field | {title} | |"
        yield "|---|---|---|"
        yield from (f"| {_code(r.field)} | {_code(r.target)} |{_cell(r.text)}" for r in rows)
    else:
        yield f"| field | {title}, because |"
        yield "|---|---|"
        yield from (f"| {_code(row.field)} |{_cell(row.text)}" for row in rows)


def _cell(text: str) -> str:
    return f" {text} |" if text else " |"


def _code(field: str) -> str:
    short = field if field.startswith("spec.*") else field.removeprefix("spec.")
    return f"`{_shortened(short)}`"


def _shortened(field: str) -> str:
    """The beginning and the end of a long field."""
    short = field.replace("template.spec.containers[trainer]", "trainer container")
    parts = short.split(".")
    if len(short) <= _WIDTH or len(parts) <= 4:
        return short
    return f"{parts[0]}...{'.'.join(parts[-3:])}"


@click.command()
@click.option("--check", is_flag=True, help="Fail when a page is out of date.")
def main(check: bool) -> None:
    """Write the tables."""
    for page in sorted(PAGES.glob("move-from-*.md")):
        text = page.read_text()
        if check and with_tables(text) != text:
            sys.exit(f"{page.name} is out of date: run `python -m tools.conversion_tables`")
        if not check:
            page.write_text(with_tables(text))


if __name__ == "__main__":
    main()
