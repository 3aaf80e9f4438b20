"""What went wrong with a connection, in words for people."""

from __future__ import annotations

import os
import socket
import ssl

_BROKEN_OFF = ("IncompleteRead", "ClientPayloadError")
"""Errors whose text shows parts of objects: of `http.client`, and of aiohttp, which ranks do not
load.
"""


def why_no_answer(error: Exception) -> str:
    """What went wrong with a connection, in words: "Connection refused", not the parts of an
    object.
    """
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if type(error).__name__ in _BROKEN_OFF:
        return "the answer broke off"
    if isinstance(error, OSError):
        return _of_system(error)
    return str(error) or "the connection broke"


def _of_system(error: OSError) -> str:
    source = getattr(error, "os_error", error)  # aiohttp wraps it
    if isinstance(source, socket.gaierror):
        unanswered = source.errno == socket.EAI_AGAIN
        what = "DNS does not answer" if unanswered else "DNS does not know its name"
        return f"{what} ({source.strerror})"
    of_tls = isinstance(error, ssl.SSLError)  # its numbers are its own
    if error.errno and error.errno > 0 and not of_tls:
        return os.strerror(error.errno)
    return str(error) or "the connection broke"
