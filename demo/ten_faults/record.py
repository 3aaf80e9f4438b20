"""What was observed, in a file: so one fault can be tried again, and the page made from all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from demo.ten_faults.observation import Look, Observed


def write(file: Path, found: dict[str, Observed]) -> None:
    """Write what was observed of each fault, by its name."""
    plain = {name: dataclasses.asdict(one) for name, one in found.items()}
    file.write_text(json.dumps(plain, indent=2, default=sorted) + "\n")


def read(file: Path) -> dict[str, Observed]:
    """What a file holds; nothing where there is none."""
    if not file.exists():
        return {}
    return {name: _observed(one) for name, one in json.loads(file.read_text()).items()}


def _observed(plain: dict[str, Any]) -> Observed:
    looks = {part: Look(**plain[part]) for part in ("height", "after")}
    return Observed(**{**plain, **looks, "pending": frozenset(plain["pending"])})
