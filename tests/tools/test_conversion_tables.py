"""The tables in the pages about moving to Regroup."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from regroup.converting.conversion import convert_command
from regroup.converting.draft import ConvertOptions
from regroup.converting.launch_command import TORCHRUN_ROWS
from regroup.converting.source import Row
from tools import conversion_tables

VALUES = {"nproc-per-node": "2", "nnodes": "1", "max-restarts": "3", "rdzv-backend": "c10d",
          "start-method": "spawn", "role": "r"}  # fmt: skip


def test_the_pages_have_the_tables_of_the_code() -> None:
    done = CliRunner().invoke(conversion_tables.main, ["--check"])
    assert done.exit_code == 0, done.output


def test_each_table_is_in_a_page() -> None:
    text = "".join(page.read_text() for page in conversion_tables.PAGES.glob("move-from-*.md"))
    assert all(f"<!-- table: {name} -->" in text for name in conversion_tables.TABLES)


def test_an_old_table_is_replaced() -> None:
    page = "a\n<!-- table: pods -->\nold\n<!-- end -->\nb\n"
    new = conversion_tables.with_tables(page)
    assert "old" not in new and "`restartPolicy`" in new
    assert conversion_tables.with_tables(new) == new


@pytest.mark.parametrize("row", TORCHRUN_ROWS)
def test_the_table_of_torchrun_says_what_becomes_of_a_flag(row: Row) -> None:
    name = row.field.removeprefix("--")
    words = ["python", "x.py"] if name == "no-python" else ["x.py"]
    given = f"{row.field}={VALUES.get(name, '1')}"
    found = [
        convert_command(["torchrun", flag, *words], ConvertOptions()) for flag in (given, row.field)
    ]
    conversion = next(one for one in found if one.refusal is None)  # with its value, or without
    assert any(n.text.startswith(row.field) for n in conversion.left_out) == (not row.target)
