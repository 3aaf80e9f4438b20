"""Copies of memory snapshots between agents: one sends, its neighbour verifies and serves them.

Each shard is one request with its files one after the other. It is read and written in pieces, so
that neither end needs memory for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import aiohttp
import xxhash
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from regroup_trainer.agent.snapshot_store import HeldShard, Slot, SnapshotStore
from regroup_trainer.protocol.generation import GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.message import (
    HIGHEST_NUMBER,
    TEXT_LIMIT,
    describe_invalid,
    listed,
    quote,
)
from regroup_trainer.protocol.rank_messages import SnapshotFile
from regroup_trainer.snapshots.neighbours import neighbours
from regroup_trainer.snapshots.places import CHECKSUM_HEADER, FILES, path_on_agent
from regroup_trainer.system.backoff import retry_seconds
from regroup_trainer.system.memory_limit import available_bytes

PIECE_BYTES = 1 << 20
RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 5.0
CONNECT_SECONDS = 5.0
FILES_HEADER = "X-Files"
NO_MEMORY = (
    "there is no memory for a copy of the neighbour's memory snapshot: raise the memory limit, or "
    "set checkpoint.memorySnapshotSteps: 0"
)
_files: TypeAdapter[dict[str, SnapshotFile]] = TypeAdapter(dict[str, SnapshotFile])
log = logging.getLogger(__name__)


class SnapshotSender:
    """Sends the shards of this agent's ranks to its neighbour, one shard at a time.

    `on_refused` gets, once in a generation, the reason why the neighbour has no memory for them.
    """

    def __init__(
        self, store: SnapshotStore, token: str, on_refused: Callable[[SnapshotNumber, str], None]
    ) -> None:
        self._store = store
        self._on_refused = on_refused
        self._refused = False
        self._headers = {"Authorization": f"Bearer {token}"}
        self._neighbour = ""
        self._waiting: asyncio.Queue[tuple[SnapshotNumber, int]] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None

    def begin(self, record: GenerationRecord, member: str) -> None:
        """Enter a generation, and drop what the last one had still to send."""
        self._neighbour = neighbour_of(record, member)
        self._refused = False
        self.stop()
        self._waiting = asyncio.Queue()

    def send(self, number: SnapshotNumber, shard: int) -> None:
        """Queue a shard, unless every member holds the whole state anyway."""
        if self._neighbour and number.shards > 1:
            self._waiting.put_nowait((number, shard))
            if self._working is None:
                self._working = asyncio.create_task(self._work())

    def stop(self) -> None:
        """Send nothing more."""
        if self._working is not None:
            self._working.cancel()
            self._working = None

    async def _work(self) -> None:
        failures = 0
        # The time for a shard depends on its size.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                number, shard = await self._waiting.get()
                held = self._store.get(number, shard)
                if held is None or await self._put(session, number, shard, held):
                    failures = 0
                    continue
                failures += 1
                await asyncio.sleep(retry_seconds(failures, RETRY_SECONDS, LONGEST_RETRY_SECONDS))
                self._waiting.put_nowait((number, shard))

    async def _put(
        self, session: aiohttp.ClientSession, number: SnapshotNumber, shard: int, held: HeldShard
    ) -> bool:
        """Send a shard; returns whether the neighbour holds it now.

        A neighbour that is gone, or has not entered the generation yet, gets it again later.
        """
        url = f"http://{self._neighbour}{path_on_agent(number, shard, '')}"
        headers = {FILES_HEADER: _files.dump_json(dict(held.files)).decode()}
        try:
            async with session.put(url, data=_contents(held), headers=headers) as response:
                if response.status == http.HTTPStatus.NO_CONTENT:
                    return True
                if response.status == http.HTTPStatus.INSUFFICIENT_STORAGE and not self._refused:
                    self._refused = True
                    self._on_refused(
                        number, f"{self._neighbour}: {await response.text()}"[:TEXT_LIMIT]
                    )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("no copy of shard %d at %s yet: %r", shard, self._neighbour, error)
        return False


def neighbour_of(record: GenerationRecord, member: str) -> str:
    """The endpoint of the member that holds copies for this one; empty where there is none."""
    place = neighbours(record.members).get(member)
    return place.endpoint if place else ""


async def _contents(held: HeldShard) -> AsyncIterator[bytes]:
    for name in FILES:
        async for piece in read_pieces(held.slot.descriptors[name], held.files[name].size):
            yield piece


async def read_pieces(descriptor: int, size: int) -> AsyncIterator[bytes]:
    """The first `size` bytes of a file in memory."""
    for offset in range(0, size, PIECE_BYTES):
        yield os.pread(descriptor, min(PIECE_BYTES, size - offset), offset)


@dataclass(frozen=True)
class SnapshotServer:
    """The routes by which other agents store shards here, and ranks fetch them.

    All of them require the job's token.
    """

    store: SnapshotStore
    token: str
    is_current: Callable[[SnapshotNumber], bool]
    """Whether a snapshot is of the generation that this agent is in."""
    on_stored: Callable[[], None]

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        router.add_put("/v1/snapshots/{number}/{shard}/", self._put)
        router.add_get("/v1/snapshots/{number}/{shard}/{name}", self._get)

    async def _put(self, request: web.Request) -> web.Response:
        number, shard = self._require(request)
        if not self.is_current(number):
            raise web.HTTPConflict(text=f"generation {number.generation} is not current here")
        files = _files_of(request)
        if sum(file.size for file in files.values()) > available_bytes():
            raise web.HTTPInsufficientStorage(text=NO_MEMORY)
        slot = self.store.acquire()
        whole = False
        try:
            whole = await _receive(request.content, slot, files) and self.is_current(number)
        finally:
            if whole:
                self.store.add(number, shard, HeldShard(slot, files))
            else:
                self.store.release(slot)
        if not whole:
            raise web.HTTPUnprocessableEntity(
                text=f"the content differs from the sizes and checksums in {FILES_HEADER}"
            )
        self.on_stored()
        return web.Response(status=http.HTTPStatus.NO_CONTENT)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        number, shard = self._require(request)
        held, name = self.store.get(number, shard), request.match_info["name"]
        if held is None or name not in held.files:
            raise web.HTTPNotFound(text=f"shard {shard} of snapshot {number} is not here")
        file = held.files[name]
        response = web.StreamResponse(headers={CHECKSUM_HEADER: file.checksum})
        response.content_length = file.size
        await response.prepare(request)
        async for piece in read_pieces(held.slot.descriptors[name], file.size):
            await response.write(piece)
        await response.write_eof()
        return response

    def authorize(self, request: web.Request) -> None:
        """Raises HTTPUnauthorized for a request without the job's token."""
        if not self.has_token(request):
            raise web.HTTPUnauthorized(text="wrong token")

    def has_token(self, request: web.Request) -> bool:
        """Whether a request has the job's token."""
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, b"Bearer " + self.token.encode())

    def _require(self, request: web.Request) -> tuple[SnapshotNumber, int]:
        self.authorize(request)
        with contextlib.suppress(ValueError):
            number = SnapshotNumber.parse(request.match_info["number"])
            shard = int(request.match_info["shard"])
            if 0 <= shard < number.shards:
                return number, shard
        raise web.HTTPBadRequest(text="a path is /v1/snapshots/NUMBER/SHARD/FILE")


def _files_of(request: web.Request) -> dict[str, SnapshotFile]:
    """The files of a shard that is about to be stored, with sizes that can be added up."""
    try:
        files = _files.validate_json(request.headers.get(FILES_HEADER, ""))
    except ValidationError as error:
        raise web.HTTPBadRequest(text=describe_invalid(error)) from None
    if sorted(files) != sorted(FILES):
        raise web.HTTPBadRequest(text=f"{FILES_HEADER} must name {listed(FILES)}, each once")
    for name, file in files.items():
        if not 0 <= file.size <= HIGHEST_NUMBER:
            raise web.HTTPBadRequest(text=f"{FILES_HEADER}: {name} has {quote(file.size)} bytes")
    return files


async def _receive(
    content: aiohttp.StreamReader, slot: Slot, files: Mapping[str, SnapshotFile]
) -> bool:
    """Fill a slot; returns whether sizes and checksums are those of `files`."""
    for name in FILES:
        file, position, digest = files[name], 0, xxhash.xxh3_64()
        os.ftruncate(slot.descriptors[name], file.size)
        while position < file.size:
            piece = await content.read(min(PIECE_BYTES, file.size - position))
            if not piece:
                return False
            os.pwrite(slot.descriptors[name], piece, position)
            digest.update(piece)
            position += len(piece)
        if digest.hexdigest() != file.checksum:
            return False
    return content.at_eof() or not await content.read(1)
