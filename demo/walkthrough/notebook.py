"""A notebook with a kernel of its own, whose cells are typed one after the other."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from demo.errors import StoryError
from demo.screen import Screen
from demo.walkthrough.transcript import Transcript

SECONDS = 900
STYLE = """body { font: 14px/1.5 sans-serif; margin: 24px; width: 850px; color: #222 }
pre { margin: 0; white-space: pre-wrap; font-size: 13px }
.in { background: #f5f5f5; border: 1px solid #ddd; padding: 8px; margin-top: 12px }
.out { padding: 8px 8px 0 }"""


@dataclass
class Notebook:
    """A notebook that runs."""

    client: Any
    """Of nbclient, which has no types."""
    transcript: Transcript
    screen: Screen

    def run(self, code: str) -> str:
        """Type a cell and run it. Returns its output as text. Raises StoryError when it fails."""
        make: Any = nbformat.v4
        cell = make.new_code_cell(textwrap.dedent(code).strip())
        self.client.nb.cells.append(cell)
        self.screen.report(f"In a notebook: {cell.source.splitlines()[0]} ...")
        try:
            self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        except CellExecutionError as error:
            raise StoryError(f"a cell of the notebook failed: {error}") from error
        shown = "\n".join(map(text_of, cell.outputs)).rstrip()
        self.transcript.block("python", cell.source)
        if shown:
            self.transcript.block("text", shown)
        self.screen.report(shown, "dim")
        return shown

    def page(self) -> str:
        """The notebook as HTML, as a browser shows it."""
        cells = "".join(
            f'<pre class="in">{html.escape(cell.source)}</pre>'
            + "".join(f'<div class="out">{html_of(output)}</div>' for output in cell.outputs)
            for cell in self.client.nb.cells
        )
        return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{cells}'


@contextmanager
def notebook(
    folder: Path, environment: dict[str, str], transcript: Transcript, screen: Screen
) -> Iterator[Notebook]:
    """A notebook in a folder, with the environment of the user's shell."""
    settings = {
        name: str(folder / "jupyter")
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    make: Any = nbformat.v4
    resources = {"metadata": {"path": str(folder)}}
    client: Any = NotebookClient(make.new_notebook(), timeout=SECONDS, resources=resources)
    with client.setup_kernel(env={**environment, **settings}):
        yield Notebook(client, transcript, screen)


def text_of(output: Any) -> str:
    """An output of a cell as text."""
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


def html_of(output: Any) -> str:
    """An output of a cell as a browser shows it."""
    if output.output_type != "stream" and "text/html" in output.data:
        return str(output.data["text/html"])
    return f"<pre>{html.escape(text_of(output).rstrip())}</pre>"
