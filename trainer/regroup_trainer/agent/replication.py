"""Copies of snapshots at a neighbour's: one agent sends, another receives and verifies, anybody of the job may fetch.

Each shard is one request, its files one after the other, in pieces that bound the memory it takes at either end.
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

from regroup_trainer.agent.vault import Held, Slot, Vault
from regroup_trainer.contract import GenerationRecord, SnapshotFile, SnapshotNumber
from regroup_trainer.memory_limit import available_bytes
from regroup_trainer.snapshots.neighbours import neighbours
from regroup_trainer.snapshots.places import CHECKSUM_HEADER, FILES, path_on_agent

PIECE_BYTES = 1 << 20
RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 5.0
CONNECT_SECONDS = 5.0
FILES_HEADER = "X-Files"
NO_MEMORY = (
    "there is no memory for a copy of the neighbour's memory snapshot: raise the memory limit, or set "
    "checkpoint.memorySnapshotSteps: 0"
)
_files: TypeAdapter[dict[str, SnapshotFile]] = TypeAdapter(dict[str, SnapshotFile])
log = logging.getLogger(__name__)


class Sender:
    """Sends what this agent's ranks have written to its neighbour in their generation, one shard at a time.

    `on_refused` hears, once in a generation, why there is no memory for it at the neighbour.
    """

    def __init__(self, vault: Vault, token: str, on_refused: Callable[[SnapshotNumber, str], None]) -> None:
        self._vault = vault
        self._on_refused = on_refused
        self._refused = False
        self._headers = {"Authorization": f"Bearer {token}"}
        self._neighbour = ""
        self._waiting: asyncio.Queue[tuple[SnapshotNumber, int]] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None

    def begin(self, record: GenerationRecord, member: str) -> None:
        """A generation begins: what the last one had still to send is of no use."""
        self._neighbour = neighbour_of(record, member)
        self._refused = False
        self.stop()
        self._waiting = asyncio.Queue()

    def send(self, number: SnapshotNumber, shard: int) -> None:
        """Have a shard copied, unless another member has written the same one."""
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
        pause = RETRY_SECONDS
        patient = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # a shard takes what it takes
        async with aiohttp.ClientSession(headers=self._headers, timeout=patient) as session:
            while True:
                number, shard = await self._waiting.get()
                held = self._vault.get(number, shard)
                if held is None or await self._put(session, number, shard, held):
                    pause = RETRY_SECONDS
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                self._waiting.put_nowait((number, shard))

    async def _put(self, session: aiohttp.ClientSession, number: SnapshotNumber, shard: int, held: Held) -> bool:
        """Whether the neighbour has it now. One that is gone, or not yet of this generation, is asked again."""
        url = f"http://{self._neighbour}{path_on_agent(number, shard, '')}"
        headers = {FILES_HEADER: _files.dump_json(dict(held.files)).decode()}
        try:
            async with session.put(url, data=_contents(held), headers=headers) as response:
                if response.status == http.HTTPStatus.NO_CONTENT:
                    return True
                if response.status == http.HTTPStatus.INSUFFICIENT_STORAGE and not self._refused:
                    self._refused = True
                    self._on_refused(number, f"{self._neighbour}: {await response.text()}"[:4096])
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("no copy of shard %d at %s yet: %r", shard, self._neighbour, error)
        return False


def neighbour_of(record: GenerationRecord, member: str) -> str:
    """The endpoint of the member that keeps a copy of what this one holds; empty where there is no other."""
    place = neighbours(record.members).get(member)
    return place.endpoint if place else ""


async def _contents(held: Held) -> AsyncIterator[bytes]:
    for name in FILES:
        async for piece in read_pieces(held.slot.descriptors[name], held.files[name].size):
            yield piece


async def read_pieces(descriptor: int, size: int) -> AsyncIterator[bytes]:
    """The first `size` bytes of a file in memory."""
    for offset in range(0, size, PIECE_BYTES):
        yield os.pread(descriptor, min(PIECE_BYTES, size - offset), offset)


@dataclass(frozen=True)
class Keeper:
    """The routes by which other agents, and ranks, keep and fetch shards here. All want the job's token."""

    vault: Vault
    token: str
    is_current: Callable[[SnapshotNumber], bool]
    """Whether it is of the generation that this agent is in."""
    on_kept: Callable[[], None]

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        router.add_put("/v1/snapshots/{number}/{shard}/", self._put)
        router.add_get("/v1/snapshots/{number}/{shard}/{name}", self._get)

    async def _put(self, request: web.Request) -> web.Response:
        number, shard = self._require(request)
        if not self.is_current(number):
            raise web.HTTPConflict(text=f"generation {number.generation} is not the one here")
        try:
            files = _files.validate_json(request.headers.get(FILES_HEADER, ""))
        except ValidationError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        if sum(file.size for file in files.values()) > available_bytes():
            raise web.HTTPInsufficientStorage(text=NO_MEMORY)
        slot = self.vault.borrow()
        whole = False
        try:
            whole = await _receive(request.content, slot, files) and self.is_current(number)
        finally:
            if whole:
                self.vault.keep(number, shard, Held(slot, files))
            else:
                self.vault.give_back(slot)
        if not whole:
            raise web.HTTPUnprocessableEntity(text="what came is not what was announced")
        self.on_kept()
        return web.Response(status=http.HTTPStatus.NO_CONTENT)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        number, shard = self._require(request)
        held, name = self.vault.get(number, shard), request.match_info["name"]
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

    def _require(self, request: web.Request) -> tuple[SnapshotNumber, int]:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise web.HTTPUnauthorized(text="wrong token")
        with contextlib.suppress(ValueError):
            return SnapshotNumber.parse(request.match_info["number"]), int(request.match_info["shard"])
        raise web.HTTPBadRequest(text="a path is /v1/snapshots/NUMBER/SHARD/FILE")


async def _receive(content: aiohttp.StreamReader, slot: Slot, files: Mapping[str, SnapshotFile]) -> bool:
    """Fill a slot; whether it is what was announced."""
    for name in FILES:
        file, position, digest = files.get(name, SnapshotFile(-1, "")), 0, xxhash.xxh3_64()
        os.ftruncate(slot.descriptors[name], max(0, file.size))
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
