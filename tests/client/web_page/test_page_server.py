"""Who gets the web page, and what its server refuses: by a client without a browser."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from regroup.web_page.page_answers import PageAnswers
from regroup.web_page.page_server import FILES, MOST_CONNECTIONS, STATIC, PageServer
from tests.support.page_source import PageSource
from tests.support.waiting import until

UPLOT = {  # of uplot 1.6.32 in the registry of npm
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@asynccontextmanager
async def serving(source: PageSource | None = None) -> AsyncIterator[tuple[str, str]]:
    """The address with the token, and the one without."""
    server = PageServer(PageAnswers(source or PageSource()))
    address = await server.listen()
    try:
        yield address, address.partition("/?")[0]
    finally:
        await server.close()


@asynccontextmanager
async def browsing(source: PageSource | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that has opened the address."""
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an IP address
    async with (
        serving(source) as (address, base),
        aiohttp.ClientSession(base, cookie_jar=jar) as client,
    ):
        async with client.get(address) as first:
            assert first.status == 200
        yield client


async def test_the_token_counts_once_and_leaves_the_address() -> None:
    async with serving() as (address, base), aiohttp.ClientSession() as client:
        async with client.get(address, allow_redirects=False) as first:
            assert (first.status, first.headers["Location"]) == (303, "/")
            cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
        name, value = cookie.partition(";")[0].split("=", 1)
        assert value not in address
        async with client.get(address, allow_redirects=False) as again:
            assert again.status == 403
            assert "Set-Cookie" not in again.headers
        cookies = {"Cookie": f"{name}={value}"}
        async with client.get(address, headers=cookies, allow_redirects=False) as reloaded:
            assert reloaded.status == 303
        async with client.get(f"{base}/api/jobs", headers=cookies) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("path", [*FILES, "/api/jobs", "/api/job?id=x", "/?token=wrong", "/other"])
async def test_nothing_is_served_without_the_cookie(path: str) -> None:
    async with serving() as (_, base), aiohttp.ClientSession() as client:
        port = base.rpartition(":")[2]
        for headers in ({}, {"Cookie": f"regroup-ui-{port}="}, {"Cookie": f"regroup-ui-{port}=é"}):
            async with client.get(base + path, headers=headers) as answer:
                assert answer.status == 403
                assert "start it again" in await answer.text()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1"])
async def test_a_name_that_resolves_to_loopback_is_refused(host: str) -> None:
    async with serving() as (address, base), aiohttp.ClientSession() as client:
        headers = {"Host": host.replace("PORT", base.rpartition(":")[2])}
        async with client.get(address, headers=headers) as answer:
            assert answer.status == 403
        async with client.get(address, allow_redirects=False) as own:
            assert own.status == 303  # the token was not used up


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
async def test_a_page_of_another_port_is_refused_though_the_cookie_goes_along(site: str) -> None:
    source = PageSource(rests=True)
    async with browsing(source) as client:
        url = "/api/kept-series?id=team/job-0"
        async with client.get(url, headers={"Sec-Fetch-Site": site}) as answer:
            assert answer.status == 403
        assert not source.reads
        async with client.get(url, headers={"Sec-Fetch-Site": "same-origin"}) as own:
            assert len((await own.json())["loss"]) == 100


async def test_localhost_is_a_name_of_it() -> None:
    async with serving() as (address, base), aiohttp.ClientSession() as client:
        headers = {"Host": f"localhost:{base.rpartition(':')[2]}"}
        async with client.get(address, headers=headers, allow_redirects=False) as answer:
            assert answer.status == 303


async def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async with browsing() as client:
        for path in ("/", "/page.js", "/api/jobs", "/api/job?id=none", "/none"):
            async with client.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self';")
                assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert answer.headers["Cache-Control"] == "no-store"
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_only_get_is_answered(method: str) -> None:
    async with browsing() as client, client.request(method, "/api/jobs") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "path", ["/../page_server.py", "/%2e%2e/page_server.py", "/static/page.js"]
)
async def test_no_other_file_is_served(path: str) -> None:
    async with browsing() as client, client.get(path) as answer:
        assert answer.status == 404


async def test_what_has_not_changed_is_not_sent_again() -> None:
    async with browsing() as client:
        async with client.get("/api/job?id=team/job-0") as answer:
            tag = answer.headers["ETag"]
        async with client.get("/api/job?id=team/job-0", headers={"If-None-Match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")


async def test_many_pages_ask_the_cluster_once() -> None:
    source = PageSource()
    async with browsing(source) as client:
        answers = await asyncio.gather(*(client.get("/api/jobs") for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert source.reads["jobs"] == 1


@pytest.mark.parametrize(
    "path",
    ["/api/jobs?start=-1", "/api/jobs?start=99999999999", "/api/logs?id=a&rank=%C2%B2",
     f"/api/job?id={'x' * 600}"],
)  # fmt: skip
async def test_a_parameter_beyond_its_bounds_is_refused(path: str) -> None:
    async with browsing() as client, client.get(path) as answer:
        assert answer.status == 400


async def test_what_cannot_be_read_is_said() -> None:
    source = PageSource(error="the cluster does not answer")
    async with browsing(source) as client, client.get("/api/jobs") as answer:
        assert (answer.status, await answer.text()) == (502, "the cluster does not answer")
    async with browsing() as client, client.get("/api/job?id=team/gone") as answer:
        assert answer.status == 404


async def test_idle_connections_push_each_other_out() -> None:
    async with browsing() as client:
        url = client._base_url
        assert url is not None
        held = [
            await asyncio.open_connection(url.host, url.port) for _ in range(2 * MOST_CONNECTIONS)
        ]
        await until("the oldest to be closed", held[0][0].at_eof)
        async with client.get("/api/jobs") as answer:
            assert answer.status == 200
        for _, writer in held:
            writer.close()


def test_the_library_of_charts_is_the_published_one_with_its_licence() -> None:
    assert {
        name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in UPLOT
    } == UPLOT
    assert "MIT License" in (STATIC / "uplot-LICENSE.txt").read_text()


@pytest.mark.parametrize("name", ["page.html", "page.css", "page.js", "uplot.css", "icon.svg"])
def test_the_page_loads_nothing_from_other_hosts(name: str) -> None:
    text = (STATIC / name).read_text().replace("http://www.w3.org/", "")
    assert "http:" not in text and "https:" not in text
    assert not re.search(r"(src|href|url\()\s*=?\s*[\"']?//", text)


def test_the_page_has_no_inline_code_and_its_script_writes_no_html() -> None:
    page, script = (STATIC / "page.html").read_text(), (STATIC / "page.js").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_every_file_that_is_served_is_in_the_package() -> None:
    assert {name for name, _ in FILES.values()} == {path.name for path in Path(STATIC).iterdir()}
