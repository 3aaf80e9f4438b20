"""What release 0.1 (protocol 1) sent and stored, as recorded from its code; and the same of 0.3.0
(protocol 3).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def recorded(name: str, version: str = "version_one") -> dict[str, Any]:
    """A fresh copy of one record."""
    file = Path(__file__).parent / version / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found
