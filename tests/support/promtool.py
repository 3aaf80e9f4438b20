"""promtool, with what it is to find in a file of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from demo import programs


def promtool(*arguments: str | Path) -> str:
    """What promtool prints. It has to succeed."""
    command = [programs.prometheus("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_rule_tests(cases: dict[str, Any], folder: Path) -> None:
    """Have promtool run these tests. They have to succeed."""
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(cases, sort_keys=False))
    promtool("test", "rules", file)
