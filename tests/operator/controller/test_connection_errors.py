"""What a failed connection is called in logs and messages."""

from __future__ import annotations

import errno

import aiohttp
import pytest

from regroup.local.processes import free_port
from regroup_operator.controller.connection_errors import why_no_answer


async def test_a_refused_connection_is_named_in_the_words_of_the_system() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError) as failed:
            await session.get(f"http://127.0.0.1:{free_port()}/")
    assert why_no_answer(failed.value) == "Connection refused"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "it takes too long"),
        (OSError(errno.EHOSTUNREACH, "x"), "No route to host"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (aiohttp.ClientPayloadError(), "ClientPayloadError"),
    ],
)
def test_other_failures_are_words_too(error: Exception, words: str) -> None:
    assert why_no_answer(error) == words
