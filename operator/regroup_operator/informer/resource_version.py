"""Versions of objects and collections, as numbers that can be compared. Pure.

Kubernetes 1.35 declares that two versions of one resource compare as positive integers (KEP-5504),
and its conformance tests check it. Its own resources and those of definitions had such versions
before: they are revisions of etcd.
"""

from __future__ import annotations

import re
from typing import Any

NEVER = 0
"""Older than each version."""
_VERSION = re.compile(r"[1-9][0-9]{0,30}")


def parse_version(text: Any) -> int:
    """A resourceVersion. Raises ValueError for what is none that can be compared."""
    if not isinstance(text, str) or not _VERSION.fullmatch(text):
        raise ValueError(f"a resourceVersion that is a positive number, but {str(text)[:40]!r}")
    return int(text)
