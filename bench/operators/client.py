"""Requests to the API server, many at a time."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from devcluster.pki import Authority

AT_ONCE = 64
"""Requests at one time, as those of many users."""
LINE_BYTES = 2**22
Json = dict[str, Any]


class RefusedError(Exception):
    """The API server has refused a request."""


class Client:
    """An asynchronous context manager."""

    def __init__(self, url: str, authority: Authority, name: str = "admin") -> None:
        self._url = url
        self._tls = ssl.create_default_context(cafile=str(authority.certificate))
        self._tls.load_cert_chain(authority.crt(name), authority.key(name))
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer. Raises RefusedError."""
        async with self._slots:
            return await self._send(method, path, body)

    async def create(self, path: str, body: Json) -> float:
        """Create an object. Returns when the request was sent, on the monotonic clock, without the
        time that it waited for others. Raises RefusedError.
        """
        async with self._slots:
            sent = time.monotonic()
            await self._send("POST", path, body)
            return sent

    async def _send(self, method: str, path: str, body: Json | None) -> Json:
        headers = {"Content-Type": "application/json"}
        text = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._url + path, data=text, headers=headers
        ) as answer:
            found = await answer.text()
        if answer.status >= 400:
            raise RefusedError(f"{method} {path}: {answer.status} {found[:1000]}")
        document: Json = json.loads(found)
        return document

    async def watch(self, path: str, selector: str = "") -> AsyncIterator[Json]:
        """Events of a collection from its beginning, each once. The API server ends a watch that
        reads too slowly, as while this process makes a thousand objects: it is begun again where it
        ended. Raises RefusedError where that is not known any more.
        """
        query = {"watch": "1", "labelSelector": selector, "timeoutSeconds": "36000"}
        while True:
            async with self._session.get(
                self._url + path, params=query, read_bufsize=LINE_BYTES
            ) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RefusedError(f"watch {path}: {event['object']}")
                    query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    yield event


async def until(
    condition: Callable[[], Awaitable[bool]], seconds: float, every: float = 0.1
) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the API server is asked
            await asyncio.sleep(every)


async def gather(requests: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """All of them; the first error ends the others."""
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(request)


def documents(*files: Path) -> list[Json]:
    """The objects of files of YAML."""
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
