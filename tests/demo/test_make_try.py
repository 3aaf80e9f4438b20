"""`make try` as a newcomer types it, in a fresh clone: what is committed. It takes minutes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.documented_commands import ROOT
from tests.support.page_terminal import PageTerminal

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
RESULTS = (
    r"1\. The coordinator was killed: the workers trained on, a new one took over\.",
    r"2\. Worker 0 was killed: the others trained on after \d+\.\d s, no step was lost\.",
    r"3\. Same loss at all 300 steps \(to \S+\), no sample skipped or repeated\.",
)


@pytest.fixture
def clone() -> Iterator[Path]:
    """Removed at once afterwards: it gets an environment of its own."""
    with TemporaryDirectory(prefix="regroup-clone-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        yield Path(folder)


def test_the_first_command_of_a_newcomer_ends_with_its_three_results(clone: Path) -> None:
    """The packages come from the cache that all clones share."""
    terminal = PageTerminal(clone, {"PYTHONPATH": "", "COLUMNS": "200"})
    shown = terminal.type("make try", seconds=1700)
    results = shown.partition("Results")[2]
    assert re.search(r"\s+".join(RESULTS), results)
    kept = json.loads((clone / "build/try/summary.json").read_text())
    assert list(kept["findings"].values()) == [True, True, True]
    print(kept)
