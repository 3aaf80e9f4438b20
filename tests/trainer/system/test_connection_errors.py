"""What went wrong with a connection, in words for people."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from regroup_trainer.system.connection_errors import why_no_answer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "connect"), "Connection refused"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "No route to host"),
        (TimeoutError(), "it takes too long"),
        (aiohttp.ServerTimeoutError("..."), "it takes too long"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (
            socket.gaierror(-2, "Name or service not known"),
            "DNS does not know its name (Name or service not known)",
        ),
        (socket.gaierror(-3, "Try again"), "DNS does not answer (Try again)"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number"),
        (http.client.IncompleteRead(b"", 5), "the answer broke off"),
        (
            aiohttp.ClientPayloadError("Response payload is not completed: <... at 0x7f>"),
            "the answer broke off",
        ),
        (OSError(), "the connection broke"),
        (aiohttp.ClientError(), "the connection broke"),
    ],
)
def test_a_failed_connection_is_put_in_words(error: Exception, words: str) -> None:
    assert why_no_answer(error) == words


class _Unknown(AbstractResolver):
    """A name server that does not know the name, as the C library reports it."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise socket.gaierror(-2, "Name or service not known")

    async def close(self) -> None:
        pass


def test_a_name_that_dns_does_not_know_is_put_in_words() -> None:
    async def ask() -> str:
        connector = aiohttp.TCPConnector(resolver=_Unknown())
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(aiohttp.ClientError) as raised:
                await session.get("http://gpt-coordinator.demo.svc:7777/")
        return why_no_answer(raised.value)

    assert asyncio.run(ask()) == "DNS does not know its name (Name or service not known)"
