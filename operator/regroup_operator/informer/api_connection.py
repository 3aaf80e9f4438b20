"""The connection to the API server: sends requests, checks what comes back, renews credentials.

A thin client over aiohttp, which kopf needs anyway, with kopf's credentials. The `kubernetes`
package was measured first: for two dozen calls it costs 126 MB on disk, 60 MB of memory and five
times the CPU per request. What comes back holds what tenants wrote, so it is read by
`observe.bounded_json`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import kopf
from yarl import URL

from regroup_operator.api.resource import Object
from regroup_operator.errors import (
    ClusterError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    UnreadableError,
)
from regroup_operator.informer.fair_places import FairPlaces
from regroup_operator.informer.large_answers import LargeAnswers
from regroup_operator.informer.request_metrics import count_request
from regroup_operator.informer.write_guard import Guard, checks, guarded, unguarded
from regroup_operator.observe.bounded_json import (
    MOST_BYTES,
    UndecodableError,
    decode,
    decode_head,
)
from regroup_trainer.system.connection_errors import why_no_answer

TIMEOUT = aiohttp.ClientTimeout(total=15, connect=5)
REQUESTS_AT_ONCE = 32
"""Connections for requests. Each watch has its own: with many namespaces there are more of them."""
REQUESTS_OF_A_NAMESPACE = REQUESTS_AT_ONCE // 2
"""The rest is for others, however many requests a namespace leads to and however late the answers
are.
"""
WATCH_GRACE_SECONDS = 30.0
"""How long a watch may stay open after its time. A connection that has died is noticed by then."""
INLINE_BYTES = 256 * 1024
"""A larger answer waits for its turn to be decoded."""
WHOLE_LINE_BYTES = 256 * 1024
"""Of a longer line of a watch only the head is decoded: decoding one takes up to 0.1 s of a process
that all tenants share, and each may change large objects in a loop.
"""
IS_HEAD = "isHead"
"""A field of such an event: its object is not whole, and must not be kept."""
JSON, JSON_PATCH = "application/json", "application/json-patch+json"
Body = Mapping[str, Any] | list[Object] | None
Login = Callable[[], kopf.ConnectionInfo]
"""Returns fresh credentials. The kubelet rotates the tokens of service accounts on disk."""


class ApiConnection:
    """Requests to one API server. An asynchronous context manager. `guard` is asked before each
    request that changes something.
    """

    def __init__(self, login: Login, guard: Guard = unguarded) -> None:
        self._login = login
        self._guard = guard
        self._info = login()
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._places = FairPlaces(REQUESTS_AT_ONCE, REQUESTS_OF_A_NAMESPACE)
        self._large = LargeAnswers()

    async def __aenter__(self) -> Self:
        self._session = self._open(REQUESTS_AT_ONCE)
        self._streams = self._open(0)
        return self

    def _open(self, limit: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._info.as_ssl_context(), limit=limit)
        return aiohttp.ClientSession(connector=connector, trace_configs=checks(self._guard))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> Object:
        """One request, repeated once with fresh credentials after a 401. It waits for a place
        without limit: its time begins when it is sent. What lies too deep in the answer is None.
        Raises ClusterError, UnreadableError for an answer that is too large or no JSON object.
        """
        headers = {"Content-Type": content, "Accept": accept}
        async with self._places.place(_namespace_of(path)):
            data = None if body is None else json.dumps(body)
            sent = {"params": query or {}, "data": data, "headers": headers}
            status, answer = await self._send(method, path, sent)
            if status == 401:
                self._log_in_again(method, path)
                status, answer = await self._send(method, path, sent)
        count_request(method, status)
        if status >= 300:
            raise _refused(method, path, status, answer)
        return await self._decoded(method, path, answer)

    async def lines(
        self, path: str, query: Mapping[str, str], accept: str, seconds: float
    ) -> AsyncGenerator[Object, None]:
        """The events of a watch, as they come; it ends by itself after `seconds`. Those above
        WHOLE_LINE_BYTES are as `decode_head` has them, with IS_HEAD, where it can. Raises as
        `request` does, also in its midst.
        """
        timeout = aiohttp.ClientTimeout(total=seconds + WATCH_GRACE_SECONDS, connect=5)
        sent = {"params": query, "headers": {"Accept": accept}, "timeout": timeout}
        async with self._answer(self._streams, "GET", path, sent) as answer:
            if answer.status == 401:
                self._log_in_again("GET", path)
            count_request("GET", answer.status)
            if answer.status >= 300:
                raise _refused("GET", path, answer.status, await _read(answer))
            async for line in split_lines(answer.content.iter_any()):
                yield await self._event(path, line)

    def _log_in_again(self, method: str, path: str) -> None:
        try:
            self._info = self._login()
        except (OSError, ValueError, kopf.LoginError) as error:
            message = f"cannot read new credentials: {error}"
            raise ClusterError(method, path, 401, message) from error

    async def _send(self, method: str, path: str, sent: Mapping[str, Any]) -> tuple[int, bytes]:
        sent = {**sent, **guarded(method, self._guard, TIMEOUT)}
        async with self._answer(self._session, method, path, sent) as answer:
            return answer.status, await _read(answer)

    async def _event(self, path: str, line: bytes) -> Object:
        if len(line) > WHOLE_LINE_BYTES and (head := decode_head(line)):
            return {**head, IS_HEAD: True}
        return await self._decoded("GET", path, line)

    async def _decoded(self, method: str, path: str, data: bytes) -> Object:
        try:
            if len(data) > INLINE_BYTES:
                found = await self._large.decode(_namespace_of(path), data)
            else:
                found = decode(data)
        except UndecodableError as error:
            raise UnreadableError(method, path, 0, f"cannot read the answer: {error}") from error
        if not isinstance(found, dict):
            raise UnreadableError(method, path, 0, "cannot read the answer: it is no object")
        return found

    @asynccontextmanager
    async def _answer(
        self,
        session: aiohttp.ClientSession | None,
        method: str,
        path: str,
        sent: Mapping[str, Any],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request. An error of the connection is a ClusterError, then and later."""
        if session is None:
            raise RuntimeError("ApiConnection is used outside its context")
        headers = {**self._info.as_http_headers(), **sent["headers"]}
        # As it stands: decoding "%2e" would make another path of it.
        url = URL(self._info.server.rstrip("/") + path, encoded=True)
        try:
            async with session.request(method, url, **{**sent, "headers": headers}) as answer:
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            count_request(method, 0)
            raise ClusterError(
                method, path, 0, f"no answer from {self._info.server}: {why_no_answer(error)}"
            ) from error


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body; one byte more than MOST_BYTES of a larger one, so that it is known to be larger."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            answer.close()
            break
    return bytes(body[: MOST_BYTES + 1])


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream. One that is longer than MOST_BYTES comes cut: what a tenant has made
    so long must not end a watch, which would list all objects again.
    """
    rest = bytearray()
    async for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield bytes((rest + line)[: MOST_BYTES + 1])
            rest.clear()
        if len(rest) <= MOST_BYTES:
            rest += last


def _namespace_of(path: str) -> str:
    """Empty for what is of no namespace, or of all."""
    return path.partition("/namespaces/")[2].partition("/")[0]


def _refused(method: str, path: str, status: int, answer: bytes) -> ClusterError:
    refusal = _refusal(answer)
    message = str(refusal.get("message", answer[:300].decode(errors="replace")))
    kinds = {404: NotFoundError, 409: ConflictError, 410: ExpiredError}
    reason = str(refusal.get("reason", ""))
    error = kinds.get(status, ClusterError)(method, path, status, message, reason)
    if isinstance(error, ExpiredError):
        metadata = refusal.get("metadata")
        error.token = str(metadata.get("continue", "")) if isinstance(metadata, dict) else ""
    return error


def _refusal(answer: bytes) -> Object:
    """The Status object of an answer; empty for what is none."""
    try:
        found = decode(answer)
    except UndecodableError:
        return {}
    return found if isinstance(found, dict) else {}
