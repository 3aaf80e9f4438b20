"""Turns a page into a PNG with a headless Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from demo.errors import MissingError
from demo.programs import chromium

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1.5",
)


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Render the page into `picture`. The size is in CSS pixels.

    Raises MissingError when Chromium fails.
    """
    program = chromium()
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={width},{height}"
        command = [
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            size,
            f"--screenshot={picture}",
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode or not picture.exists():
        raise MissingError(f"chromium could not draw {page}: {done.stderr.strip()[-500:]}")
