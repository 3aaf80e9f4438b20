"""A proxy before the real API server that fails in every way that a network and a server can.

By seed it draws what becomes of each request: see `Fault`. Or it holds back all requests from one
that a test names, and carries out the writes among them later. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from enum import Enum, auto
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml
from aiohttp import web

from devcluster.pki import Authority
from tests.support.kube_api import Json

PAGE = "2"
"""Objects in a page of a list while there are faults, so that lists have more than one."""
STUCK_SECONDS = 20.0
"""Longer than any client waits for an answer to its request."""
LATE_SECONDS = (0.5, 8.0)
WATCH_SECONDS = (0.2, 8.0)
_HOP = {"host", "connection", "content-length", "transfer-encoding"}


class Fault(Enum):
    """What becomes of a request."""

    NONE = auto()
    """It is passed on."""
    REFUSED = auto()
    """It is answered with 429, 500, 503 or 504, a write also with 409, and not carried out."""
    GONE = auto()
    """410, for the next page of a list, or for a watch: as its answer, or as its first line."""
    DROPPED = auto()
    """The watch is passed on, and breaks in its midst."""
    LOST = auto()
    """It is carried out, and the connection is closed without an answer."""
    LATE = auto()
    """The connection is closed at once. A write is carried out seconds later."""
    STUCK = auto()
    """Nothing is answered until the client gives up. A write is carried out then."""


Weights = dict[Fault, float]
REQUESTS: Weights = {Fault.REFUSED: 10, Fault.LOST: 5, Fault.LATE: 5, Fault.STUCK: 1}
PODS: Weights = {**REQUESTS, Fault.LATE: 15}
"""Of requests that make one: the next pod of a worker is made before a late one is."""
PAGES: Weights = {**REQUESTS, Fault.GONE: 5}
WATCHES: Weights = {Fault.REFUSED: 15, Fault.GONE: 15, Fault.STUCK: 2, Fault.DROPPED: 68}
LEASES: Weights = {Fault.REFUSED: 10, Fault.LOST: 5, Fault.LATE: 3}
"""In percent. None is stuck: a leader that cannot renew its Lease for 10 s ends."""


class FaultyProxy:
    """Serves inside `serving`, and passes all on until its faults begin."""

    def __init__(self, kubeconfig: Path, seed: int) -> None:
        """`kubeconfig`: of a devcluster.ApiServer, whose certificate it shows too."""
        config = yaml.safe_load(kubeconfig.read_text())
        self._server = str(config["clusters"][0]["cluster"]["server"])
        self._pki = Authority(kubeconfig.parent / "pki")
        self._random = random.Random(seed)
        self._faulty = False
        self._started, self._ended = threading.Event(), asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Transport] = set()
        self._released = asyncio.Event()
        self._port = 0
        self.counts: Counter[str] = Counter()
        """How many requests met which fault."""
        self.errors: list[Exception] = []
        """Of the proxy itself."""
        self.hides: Callable[[Json], bool] | None = None
        """Which events watches leave out that have begun since it was set. They go on all the same,
        and pass on whole lines.
        """
        self.hidden: list[Json] = []
        """The events that were left out."""
        self.late_pods: set[str] = set()
        """Names of pods whose creation was, or will be, carried out late."""
        self.holds: Callable[[Sent], bool] | None = None
        """Which request is held back. From that one on, none is passed on until `release`."""
        self.held: list[Sent] = []
        """The writes that were held back. The first one is that which `holds` named."""
        self.late_answers: list[int] = []
        """Codes of the answers to them."""
        self.breaks_at: Callable[[Sent, bool], bool] | None = None
        """Asked about each write before it is passed on, and again (True) once it is carried out,
        before its answer: whether the connection is closed there.
        """

    @contextmanager
    def serving(self) -> Iterator[FaultyProxy]:
        """Inside, it serves."""
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        assert self._started.wait(60)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def kubeconfig_of(self, path: Path) -> None:
        """Let the kubeconfig at this path lead here."""
        config = yaml.safe_load(path.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._port}"
        path.write_text(yaml.safe_dump(config))

    def begin_faults(self) -> None:
        """From now on requests fail, and all watches break once."""
        self._faulty = True
        self._loop.call_soon_threadsafe(self._break_watches)

    def end_faults(self) -> None:
        """From now on requests are passed on. What is late still comes."""
        self._faulty = False

    def release(self) -> None:
        """Carry out what was held back, in the order in which it came, and hold nothing more."""
        self._loop.call_soon_threadsafe(self._release)

    @property
    def has_late(self) -> bool:
        """Whether a request is still to be carried out."""
        return bool(self._later)

    # --- the server -------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            trusted = ssl.create_default_context(cafile=str(self._pki.certificate))
            connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            own.load_cert_chain(self._pki.crt("apiserver"), self._pki.key("apiserver"))
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=own).start()
            self._port = runner.addresses[0][1]
            self._started.set()
            await self._ended.wait()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._treat(request)
        except (ConnectionError, aiohttp.ClientConnectionError):
            raise
        except Exception as error:
            self.errors.append(error)
            raise

    async def _treat(self, request: web.Request) -> web.StreamResponse:
        sent = await Sent.read(request, small_pages=self._faulty)
        if self._holds_back(sent):
            await self._released.wait()
            return _closed(request)
        fault = self._draw(sent)
        self.counts[fault.name] += 1
        match fault:
            case Fault.REFUSED:
                return self._refusal(sent)
            case Fault.GONE:
                return await self._gone(request, sent)
            case Fault.LOST:
                async with self._forward(sent) as answer:
                    await answer.read()
                return _closed(request)
            case Fault.LATE:
                self._carry_out_later(sent, self._random.uniform(*LATE_SECONDS))
                return _closed(request)
            case Fault.STUCK:
                try:
                    await asyncio.sleep(STUCK_SECONDS)
                finally:  # the client has given up
                    self._carry_out_later(sent, 0.0)
                return _closed(request)
        seconds = self._random.uniform(*WATCH_SECONDS) if fault is Fault.DROPPED else None
        return await self._pass(request, sent, seconds)

    def _holds_back(self, sent: Sent) -> bool:
        if self._released.is_set() or self.holds is None:
            return False
        if not self.held and not self.holds(sent):
            return False
        if sent.changes:
            self.held.append(sent)
        return True

    def _release(self) -> None:
        self._released.set()
        task = asyncio.create_task(self._carry_out_held())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _carry_out_held(self) -> None:
        for sent in self.held:
            async with self._forward(sent) as answer:
                await answer.read()
                self.late_answers.append(answer.status)

    def _draw(self, sent: Sent) -> Fault:
        if not self._faulty:
            return Fault.NONE
        weights = sent.weights
        faults = [*weights, Fault.NONE]
        rest = 100 - sum(weights.values())
        return self._random.choices(faults, [*weights.values(), rest])[0]

    def _refusal(self, sent: Sent) -> web.Response:
        reasons = {
            429: "TooManyRequests",
            500: "InternalError",
            503: "ServiceUnavailable",
            504: "Timeout",
            **({409: "Conflict"} if sent.changes else {}),
        }
        code = self._random.choice(list(reasons))
        self.counts[str(code)] += 1
        return _status(code, reasons[code], "a fault of the test")

    def _forward(self, sent: Sent) -> aiohttp.client._RequestContextManager:
        return self._session.request(
            sent.method, self._server + sent.path, data=sent.body or None, headers=sent.headers
        )

    async def _pass(
        self, request: web.Request, sent: Sent, seconds: float | None
    ) -> web.StreamResponse:
        """Pass on the answer as it comes, for so many seconds at most."""
        if self._breaks(sent, carried_out=False):
            return _closed(request)
        async with self._forward(sent) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            if not sent.is_watch or request.transport is None:
                body = await answer.read()
                if self._breaks(sent, carried_out=True):
                    return _closed(request)
                return web.Response(status=answer.status, headers=headers, body=body)
            passed = web.StreamResponse(status=answer.status, headers=headers)
            await passed.prepare(request)
            self._watches.add(request.transport)
            try:
                async with asyncio.timeout(seconds):
                    async for chunk in self._shown(answer):
                        await passed.write(chunk)
            except (TimeoutError, ConnectionError):
                return _closed(request)
            finally:
                _abort(answer)
            return passed

    def _breaks(self, sent: Sent, *, carried_out: bool) -> bool:
        return sent.changes and self.breaks_at is not None and self.breaks_at(sent, carried_out)

    async def _shown(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in answer.content.iter_any():
            if self.hides is None:
                yield chunk
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if self.hides(event := json.loads(line)):
                    self.hidden.append(event)
                else:
                    yield line + b"\n"

    def _break_watches(self) -> None:
        """Those of which the connection has ended are aborted in vain."""
        for transport in self._watches:
            transport.abort()
        self._watches.clear()

    async def _gone(self, request: web.Request, sent: Sent) -> web.StreamResponse:
        status = _status(410, "Expired", "too old resource version")
        if not sent.is_watch or self._random.random() < 0.5:
            return status
        line = json.dumps({"type": "ERROR", "object": json.loads(status.text or "")})
        return web.Response(text=line + "\n", content_type="application/json")

    def _carry_out_later(self, sent: Sent, seconds: float) -> None:
        if not sent.changes:
            return
        if sent.new_pod:
            self.late_pods.add(sent.new_pod)
        task = asyncio.create_task(self._carry_out(sent, seconds))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _carry_out(self, sent: Sent, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._forward(sent) as answer:
            await answer.read()
            self.counts[f"late {sent.method}: {answer.status}"] += 1


class Sent:
    """A request of the client."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @classmethod
    async def read(cls, request: web.Request, *, small_pages: bool) -> Sent:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        url = request.rel_url
        if small_pages and "limit" in url.query:
            url = url.update_query(limit=PAGE)
        return cls(request.method, str(url), headers, await request.read())

    @property
    def is_watch(self) -> bool:
        return "watch=1" in urlsplit(self.path).query

    @property
    def changes(self) -> bool:
        """Whether it changes a stored object: then there may be a conflict."""
        return self.method != "GET" and "reviews" not in self.path

    @property
    def weights(self) -> Weights:
        """How likely each fault is."""
        if self.is_watch:
            return WATCHES
        if "/leases" in self.path:
            return LEASES
        if self.new_pod:
            return PODS
        return PAGES if "continue=" in self.path else REQUESTS

    @property
    def new_pod(self) -> str:
        """The name of the pod that the request makes; empty where it makes none."""
        makes_pod = self.method == "POST" and self.path.endswith("/pods")
        return str(json.loads(self.body)["metadata"]["name"]) if makes_pod else ""


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(
        {**body, "reason": reason, "message": message}, status=code, headers=headers
    )


def _abort(answer: aiohttp.ClientResponse) -> None:
    """End the connection if it still brings something: closing it well would take half a minute."""
    connection = answer.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _closed(request: web.Request) -> web.Response:
    """Close the connection; nobody gets this answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
