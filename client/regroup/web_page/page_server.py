"""The server of the web page: on loopback only, for one browser, and nothing but reads."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from regroup.kubernetes.cluster_errors import ClusterError
from regroup.web_page.job_source import NoSuchJobError, SourceError
from regroup.web_page.page_access import TOKEN, PageAccess
from regroup.web_page.page_answers import PageAnswers
from regroup.web_page.page_data import cut
from regroup_trainer.system.server_connections import Connections, Listening

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64
LONGEST_FIELD = 512
"""Characters of a parameter of a request."""
MOST_JOBS = 1_000_000
"""The highest number that a page of the list may begin with."""
STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("page.html", "text/html"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/uplot.css": ("uplot.css", "text/css"),
    "/uplot.js": ("uplot.js", "text/javascript"),
    "/uplot-LICENSE.txt": ("uplot-LICENSE.txt", "text/plain"),
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OPEN_AGAIN = (
    "Only the browser that first opened the address of `regroup ui` may see this page. End the "
    "command with Ctrl-C, start it again, and open the address that it prints.\n"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """Serves until `close`."""

    def __init__(self, answers: PageAnswers) -> None:
        self._answers = answers
        self._connections = Connections(lambda: MOST_CONNECTIONS)
        self._access = PageAccess(port=0)
        self._listening: Listening | None = None

    async def listen(self, port: int = 0) -> str:
        """Listen on this port of 127.0.0.1, or on a free one. Returns the address to open. Raises
        OSError.
        """
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.2)
        self._listening = await self._connections.listen(runner, ADDRESS, port)
        self._access = PageAccess(port=self._listening.addresses[0][1])
        return self._access.address

    async def close(self) -> None:
        """Serve no more."""
        if self._listening is not None:
            await self._listening.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard, _explain])
        app.on_response_prepare.append(_add_headers)
        for path in FILES:
            app.router.add_get(path, _file, allow_head=False)
        routes: dict[str, Handler] = {
            "/api/jobs": self._jobs,
            "/api/job": self._job,
            "/api/series": self._series,
            "/api/kept-series": self._kept_series,
            "/api/checkpoints": self._checkpoints,
            "/api/logs": self._logs,
        }
        for path, handler in routes.items():
            app.router.add_get(path, handler, allow_head=False)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let through what the own page asks for."""
        self._connections.request(request.transport)
        access = self._access
        if not access.is_own_host(request.headers.get("Host", "")):
            return _text(403, f"This server is 127.0.0.1:{access.port}, under no other name.\n")
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        if request.path != "/" and not access.is_own_page(request.headers.get("Sec-Fetch-Site")):
            return _text(403, "Only the page itself may ask for this.\n")
        has_session = access.has_session(request.cookies.get(access.cookie_name))
        if request.path == "/" and TOKEN in request.query:
            return self._enter(request.query[TOKEN], has_session)
        if not has_session:
            return _text(403, _OPEN_AGAIN)
        self._connections.prove(request.transport)
        return await handler(request)

    def _enter(self, token: str, has_session: bool) -> web.Response:
        """Exchange the token; a browser that has done so may load the address again."""
        session = self._access.exchange(token)
        if session is None and not has_session:
            return _text(403, _OPEN_AGAIN)
        response = web.Response(status=303, headers={"Location": "/"})
        if session is not None:
            name = self._access.cookie_name
            response.set_cookie(name, session, path="/", httponly=True, samesite="Strict")
        return response

    async def _jobs(self, request: web.Request) -> web.Response:
        start = _number(request, "start") or 0
        return _json(request, await self._answers.jobs(start, _field(request, "text")))

    async def _job(self, request: web.Request) -> web.Response:
        return _json(request, await self._answers.job(_field(request, "id")))

    async def _series(self, request: web.Request) -> web.Response:
        return _json(request, await self._answers.series(_field(request, "id")))

    async def _kept_series(self, request: web.Request) -> web.Response:
        return _json(request, await self._answers.kept_series(_field(request, "id")))

    async def _checkpoints(self, request: web.Request) -> web.Response:
        return _json(request, await self._answers.checkpoints(_field(request, "id")))

    async def _logs(self, request: web.Request) -> web.Response:
        rank = _number(request, "rank")
        return _json(request, await self._answers.logs(_field(request, "id"), rank))


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the source cannot read becomes a sentence that the page shows."""
    try:
        return await handler(request)
    except NoSuchJobError as error:
        return _text(404, cut(str(error)))
    except (SourceError, ClusterError) as error:
        return _text(502, cut(str(error)))


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


async def _file(request: web.Request) -> web.StreamResponse:
    name, kind = FILES[request.path]
    return web.Response(body=(STATIC / name).read_bytes(), content_type=kind, charset="utf-8")


def _json(request: web.Request, body: bytes) -> web.Response:
    """The answer, or that the page has it already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers={"ETag": tag})
    return web.Response(body=body, content_type="application/json", headers={"ETag": tag})


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text)


def _field(request: web.Request, name: str) -> str:
    """A parameter; empty where it is missing. Raises HTTPBadRequest."""
    value = request.query.get(name, "")
    if len(value) > LONGEST_FIELD:
        raise web.HTTPBadRequest(text=f"{name}: at most {LONGEST_FIELD} characters\n")
    return value


def _number(request: web.Request, name: str) -> int | None:
    """The same of a whole number from 0; None where it is missing."""
    value = _field(request, name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 10) or int(value) > MOST_JOBS:
        raise web.HTTPBadRequest(text=f"{name}: give a number from 0 to {MOST_JOBS}\n")
    return int(value)
