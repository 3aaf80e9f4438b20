"""The documentation site: whole, searchable, and nothing in it is loaded from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from demo.picture.browser import FLAGS
from demo.programs import chromium
from tests.support.loopback_server import LoopbackServer, QuietHandler

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"""
    r"""|url\(["']?((?:https?:)?//[^)]+)"""
)
"""What a browser fetches by itself: not the links that a reader may follow."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does. A broken link fails it."""
    folder = tmp_path_factory.mktemp("site")
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html", "-c", "docs", "."]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(folder)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


class FileServer(LoopbackServer):
    """Serves the files of a folder on a free port."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        super().__init__("127.0.0.1", 0)

    def _handler(self) -> type[QuietHandler]:
        folder = self._folder

        class FilesHandler(QuietHandler, SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=folder)

        return FilesHandler

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"


@pytest.fixture
def server(site: Path) -> Iterator[FileServer]:
    with FileServer(site) as running:
        yield running


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = {
        f"{page.relative_to(site)}: {found[1] or found[2]}"
        for page in (*site.rglob("*.html"), *site.rglob("*.css"))
        for found in LOADED.finditer(page.read_text())
    }
    assert not loaded


def test_the_first_page_leads_to_each_other_page(site: Path) -> None:
    first = (site / "docs/index.html").read_text()
    sections = ("Start", "Concepts", "Write a job", "Run a job", "Run a cluster", "Reference")
    assert all(f'<span class="caption-text">{section}</span>' in first for section in sections)
    assert "make" in first.partition("<h2>")[0]
    assert "docs/index.html" in (site / "index.html").read_text()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("word", "page"), [("straggler", "Silent failures"), ("memorySnapshotSteps", "TrainingJob")]
)
def test_a_reader_finds_a_page_by_a_word(
    server: FileServer, word: str, page: str, tmp_path: Path
) -> None:
    command = [chromium(), *FLAGS, f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, "--dump-dom", f"{server.address}/search.html?q={word}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert page in re.findall(r'<li class="kind-\w+"><a [^>]*>([^<]*)</a>', done.stdout)
