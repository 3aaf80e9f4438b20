"""What went wrong with a connection, in words for people."""

from __future__ import annotations

import os
import ssl

import aiohttp


def why_no_answer(error: Exception) -> str:
    """What went wrong with a connection, in words: "Connection refused", not the parts of an
    object.
    """
    if isinstance(error, TimeoutError):
        return "it takes too long"
    of_tls = isinstance(error, ssl.SSLError | aiohttp.ClientSSLError)  # its numbers are its own
    if isinstance(error, OSError) and not of_tls and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
