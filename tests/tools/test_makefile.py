"""`make help` lists all commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_help_describes_every_command() -> None:
    commands = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    described = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert commands
    assert {name: bool(described.get(name)) for name in commands} == dict.fromkeys(commands, True)
