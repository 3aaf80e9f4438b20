"""What went wrong with a connection, in words for people."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest

from regroup_operator.controller.connection_errors import why_no_answer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "connect"), "Connection refused"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "No route to host"),
        (TimeoutError(), "it takes too long"),
        (aiohttp.ServerTimeoutError("..."), "it takes too long"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (socket.gaierror(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number"),
        (OSError(), "OSError"),
    ],
)
def test_a_failed_connection_is_put_in_words(error: Exception, words: str) -> None:
    assert why_no_answer(error) == words
