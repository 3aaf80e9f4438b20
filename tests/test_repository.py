"""The layout that everything else relies on: packages where they belong, sizes that can be read, names that tell."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("operator", "trainer", "client")
CODE = (*PRODUCT, "devcluster", "demo", "bench", "tools")


def modules(*folders: str) -> Iterator[Path]:
    """Yield the Python files of the repository below `folders`."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_folders_that_hold_packages_are_no_packages_themselves() -> None:
    for folder in (*PRODUCT, "tests"):
        assert not (ROOT / folder / "__init__.py").exists(), f"{folder}/__init__.py would shadow a module of that name"
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_standard_library_operator_module_is_found_from_the_repository_root() -> None:
    script = "import operator; print(operator.attrgetter('real')(1))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "helpers", "common", "manager", "misc"}
    assert not [path for path in modules(*CODE, "tests") if path.stem in drawers]


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in modules(*CODE, "tests") if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert not silent


def test_modules_and_functions_stay_short_enough_to_read() -> None:
    lengths = sorted(length for path in modules(*CODE) for length in function_lengths(path))
    assert statistics.median(lengths) <= 10
    assert lengths[int(0.9 * len(lengths))] <= 30
    assert not [path for path in modules(*CODE) if len(path.read_text().splitlines()) > 700]


def function_lengths(path: Path) -> Iterator[int]:
    """Yield the number of lines of each function in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1
