"""What went wrong with a connection, in words for people."""

from __future__ import annotations

import os


def why_no_answer(error: Exception) -> str:
    """What went wrong with a connection, in words: "Connection refused", not the parts of an
    object.
    """
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
