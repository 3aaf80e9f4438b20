"""What release 0.1 (protocol 1) sent and stored, as recorded from its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "version_one"


def recorded(name: str) -> dict[str, Any]:
    """A fresh copy of one record."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found
