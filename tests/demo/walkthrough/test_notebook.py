"""A notebook with a real kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo.errors import StoryError
from demo.screen import Screen
from demo.walkthrough.notebook import notebook
from demo.walkthrough.transcript import Transcript

SHOW = """
from IPython.display import display
print("a line")
display({"text/plain": "step 3", "text/html": "<progress value=3 max=9></progress>"}, raw=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_cells_run_one_after_the_other_and_show_what_they_print(tmp_path: Path) -> None:
    transcript = Transcript()
    with notebook(tmp_path, dict(os.environ), transcript, Screen()) as opened:
        opened.run("a = 3")
        assert opened.run("print(a)") == "3"
        assert opened.run(SHOW) == "a line\n\nstep 3"
        assert "<progress value=3 max=9>" in opened.page()
        with pytest.raises(StoryError, match="ZeroDivisionError"):
            opened.run("1 / 0")
    assert "```python\nprint(a)\n```\n\n```text\n3\n```" in transcript.markdown()
