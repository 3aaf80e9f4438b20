"""The command: what it prints, and how soon it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import wait_until

# As a shell starts what is in the background: SIGINT is ignored from the start.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from regroup.cli import main
sys.argv = ["regroup", "ui", *sys.argv[1:]]
main()
"""


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", START, str(folder), "--no-browser", *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_though_a_connection_is_open(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        title, _, address = process.stdout.readline().partition(": ")
        assert title == f"Runs in {tmp_path}"
        where = urlsplit(address.strip())
        assert where.hostname == "127.0.0.1" and where.query.startswith("token=")
        with socket.create_connection((where.hostname, where.port or 0)):  # and says nothing
            process.send_signal(number)
            assert process.wait(10) == 0  # without the minute that connections may have to end
        assert "Traceback" not in process.communicate()[1]


def test_the_browser_of_a_desktop_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    words = [sys.executable, "-c", START, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        wait_until("the browser to be opened", opened.exists)
        assert opened.read_text().strip() == line.partition(": ")[2].strip()
        process.send_signal(signal.SIGINT)


def test_a_port_that_is_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with start(tmp_path, "--port", port) as process:
            _, output = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"--port {port}: " in output and "give another one" in output
