"""The pause between two tries after failures in a row. Pure."""

from __future__ import annotations


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after `failures` failures in a row: none after the first one, `first` after
    the second one, then doubling up to `longest`.
    """
    return 0.0 if failures <= 1 else min(longest, first * 2.0 ** min(failures - 2, 30))
