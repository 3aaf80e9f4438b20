"""What release 0.1 (protocol 1) sent and stored, as recorded from its code; and the same of 0.2.0
(protocol 2) and 0.3.0 (protocol 3). No change of today's code changes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VERSIONS = {1: "version_one", 2: "version_two", 3: "version_three"}
"""The records of each protocol."""


def recorded(name: str, version: str = "version_one") -> dict[str, Any]:
    """A fresh copy of one record."""
    file = Path(__file__).parent / version / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found
