"""List and watch, beside a server that does what a real API server seldom does."""

from __future__ import annotations

import asyncio
import functools
import logging
import tracemalloc
from collections.abc import AsyncIterator, Callable

import kopf
import pytest
from prometheus_client import REGISTRY

from regroup_operator.api.resource import Object
from regroup_operator.errors import ClusterError, UnreadableError
from regroup_operator.informer import list_watch
from regroup_operator.informer.api_connection import (
    REQUESTS_AT_ONCE,
    WHOLE_LINE_BYTES,
    ApiConnection,
    split_lines,
)
from regroup_operator.informer.collection import Collection, pages
from regroup_operator.informer.list_watch import ListWatch, SubjectOf, own_key
from regroup_operator.informer.object_cache import Change, ObjectCache
from regroup_operator.informer.remembered_objects import keep_text
from regroup_operator.observe.bounded_json import MOST_BYTES
from tests.support.fake_api_server import GARBAGE, FakeApiServer, make_object
from tests.support.waiting import until, wait_until

KEYS = (("a", "one"), ("a", "two"))


def _read_name(document: Object) -> tuple[str, int]:
    """Keep the name of an object; `bad` is one that this code fails on."""
    name = str(document["metadata"]["name"])
    if name == "bad":
        raise RecursionError("too deep")
    return name, 1


class Watched:
    """A running list and watch of a fake server's collection, and what it reports."""

    def __init__(self, server: FakeApiServer, subject_of: SubjectOf = own_key) -> None:
        self.server = server
        self._subject_of = subject_of
        self.changes: list[tuple[str, bool]] = []
        """Names, and whether the spec is what it was."""
        self.pauses: list[float] = []
        self.cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watched:
        self._connection = await self.server.connect().__aenter__()
        collection = Collection(self._connection, "/things")
        self.watch = ListWatch(
            collection, self.cache, self._take, _read_name, self._subject_of, self._sleep
        )
        self._task = asyncio.create_task(self.watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._connection.__aexit__(None, None, None)

    def _take(self, change: Change[str]) -> None:
        self.changes.append((change.subject[1], change.same_spec))

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, for 10 s. Fails when the watch has ended."""
        running = self._task

        def holds() -> bool:
            assert running is not None
            assert not running.done(), running
            return condition()

        await until("what is watched", holds, 10)

    async def watches(self, count: int) -> None:
        """Wait for the watch of this number."""
        await self.until(lambda: len(self.server.watched_from) == count)

    async def expect(self, *changes: tuple[str, bool]) -> None:
        """Wait for exactly these changes, and forget them."""
        await self.until(lambda: len(self.changes) >= len(changes))
        assert self.changes == list(changes)
        self.changes.clear()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.objects = [make_object(name, 1) for name in ("one", "two")]
        server.version = 7
        yield server


@pytest.fixture
async def watched(server: FakeApiServer) -> AsyncIterator[Watched]:
    """Two objects are listed, and a watch is open."""
    async with Watched(server) as watched:
        await watched.expect(("one", False), ("two", False))
        await watched.watches(1)
        yield watched


async def test_a_change_says_whether_the_spec_has_changed(watched: Watched) -> None:
    server = watched.server
    assert server.watched_from == ["7"]
    server.send("MODIFIED", make_object("one", 8))
    server.send("MODIFIED", make_object("one", 9, generation=2))
    server.send("ADDED", make_object("three", 10))
    server.send("DELETED", make_object("three", 11))
    server.send("ADDED", make_object("three", 12, uid="another"))
    await watched.expect(
        ("one", True), ("one", False), ("three", False), ("three", False), ("three", False)
    )


async def test_a_change_is_reported_with_the_key_of_another_object(server: FakeApiServer) -> None:
    async with Watched(server, lambda metadata: ("default", f"of {metadata['name']}")) as watched:
        await watched.expect(("of one", False), ("of two", False))
        await watched.watches(1)
        server.send("DELETED", make_object("one", 8))
        await watched.expect(("of one", False))


async def test_a_watch_that_ends_goes_on_from_the_last_event_or_bookmark(watched: Watched) -> None:
    server = watched.server
    server.send("MODIFIED", make_object("one", 8))
    server.lines.put_nowait(None)
    await watched.watches(2)
    server.send("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    server.lines.put_nowait(None)
    await watched.watches(3)
    assert server.watched_from == ["7", "8", "20"]
    assert server.lists == 1
    await watched.expect(("one", True))


async def test_after_410_a_list_finds_what_was_missed_and_reports_nothing_else(
    watched: Watched,
) -> None:
    server = watched.server
    server.objects = [make_object("one", 1), make_object("three", 30)]
    server.version = 40
    server.send("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
    await watched.expect(("three", False), ("two", False))
    await watched.watches(2)
    assert (server.lists, server.watched_from[-1]) == (2, "40")


async def test_versions_that_are_too_old_again_and_again_are_listed_ever_later(
    watched: Watched,
) -> None:
    """Each list succeeds, and each watch brings an event before it ends."""
    server = watched.server
    watched.pauses.clear()
    for number in range(1, 9):
        server.version += 2
        server.send("BOOKMARK", {"metadata": {"resourceVersion": str(server.version - 1)}})
        server.send("ERROR", {"code": 410})
        await watched.until(lambda number=number: server.lists > number)  # type: ignore[misc]
    longest = list_watch.LONGEST_BACKOFF_SECONDS
    assert watched.pauses[0] <= 0.2
    assert watched.pauses[-1] >= longest / 2


async def test_a_line_that_is_cut_or_cannot_be_read_loses_no_change(watched: Watched) -> None:
    server = watched.server
    server.lines.put_nowait(b'{"type": "MODIFIED", "object": {"metadata": {"na')
    server.lines.put_nowait(None)
    await watched.watches(2)
    assert (server.lists, server.watched_from[-1]) == (1, "7")
    for line in (GARBAGE, b"[]", b'{"type": "MODIFIED"}', b'{"object": {"metadata": {}}}'):
        lists = server.lists
        server.objects[0] = make_object("one", 50 + lists)
        server.lines.put_nowait(line + b"\n")
        await watched.expect(("one", True))
        assert server.lists == lists + 1
        await watched.watches(2 + lists)


async def test_credentials_that_cannot_be_read_fail_a_request_and_nothing_else(
    server: FakeApiServer,
) -> None:
    found = [kopf.ConnectionInfo(server=server.url)]

    def login() -> kopf.ConnectionInfo:
        if not found:
            raise kopf.LoginError("no token at the moment")
        return found.pop()

    server.refusals = [401]
    async with ApiConnection(login) as connection:
        with pytest.raises(ClusterError, match="cannot read new credentials: no token"):
            await anext(Collection(connection, "/things").watch("1", 60))


async def test_an_outage_is_waited_for_ever_longer_and_then_the_watch_goes_on(
    watched: Watched,
) -> None:
    server = watched.server
    watched.pauses.clear()
    server.refusals = [500, 429, 403]
    server.lines.put_nowait(None)
    server.send("MODIFIED", make_object("one", 8))
    await watched.expect(("one", True))
    assert (server.lists, server.watched_from) == (1, ["7"] * 5)
    bounds = [(0, 0), (0.1, 0.2), (0.2, 0.4), (0.4, 0.8)]
    assert len(watched.pauses) == len(bounds)
    assert all(low <= p <= high for p, (low, high) in zip(watched.pauses, bounds, strict=True))


async def test_after_many_failures_the_version_itself_is_not_trusted(watched: Watched) -> None:
    watched.server.refusals = [500] * 12
    watched.server.lines.put_nowait(None)
    await watched.until(lambda: watched.server.lists >= 3)


async def test_an_error_of_our_own_ends_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    with monkeypatch.context() as patch:
        patch.setattr(ListWatch, "_take", fail)
        watched.server.send("MODIFIED", make_object("one", 8))
        await watched.watches(2)
    assert watched.server.lists == 2
    watched.server.send("MODIFIED", make_object("one", 9))
    await watched.expect(("one", True))
    assert "watch of /things failed" in caplog.text


async def test_watches_that_end_at_once_are_not_begun_without_pause(watched: Watched) -> None:
    watched.pauses.clear()
    for _ in range(4):
        watched.server.lines.put_nowait(None)
    await watched.until(lambda: len(watched.pauses) == 4)
    assert watched.pauses[-1] >= list_watch.FIRST_BACKOFF_SECONDS


# --- the cache ------------------------------------------------------------------------------------


def _kept(watched: Watched) -> list[str | None]:
    """The values that the cache has of `one`, `two` and `three`."""
    found = (watched.cache.get(("a", name)) for name in ("one", "two", "three"))
    return [seen.value if seen else None for seen in found]


async def test_the_cache_holds_what_list_and_watch_have_shown(watched: Watched) -> None:
    assert _kept(watched) == ["one", "two", None]
    watched.server.send("ADDED", make_object("three", 8))
    watched.server.send("DELETED", make_object("one", 9))
    watched.server.send("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    await watched.until(lambda: watched.cache.version == 20)
    assert _kept(watched) == [None, "two", "three"]


async def test_a_list_after_410_leaves_no_ghost(watched: Watched) -> None:
    watched.server.objects = [make_object("two", 1)]
    watched.server.version = 40
    watched.server.send("ERROR", {"code": 410})
    await watched.until(lambda: watched.cache.version == 40)
    assert _kept(watched) == [None, "two", None]


async def test_a_refreshed_cache_shows_what_its_watch_has_not_sent_and_reports_it_later(
    watched: Watched,
) -> None:
    server = watched.server
    server.objects = [make_object("two", 9), make_object("three", 8)]
    server.version = 9
    await watched.watch.refresh()
    assert _kept(watched) == [None, "two", "three"]
    assert (watched.cache.version, watched.changes) == (7, [])
    server.send("ADDED", make_object("three", 8))
    server.send("MODIFIED", make_object("two", 9))
    await watched.expect(("three", False), ("two", True))


async def test_a_list_that_fails_in_its_midst_leaves_the_cache_as_it_was(watched: Watched) -> None:
    server = watched.server
    server.objects = [make_object(f"n{number}", 1) for number in range(150)]
    server.version, server.expired_tokens = 40, 1
    server.send("ERROR", {"code": 410})
    await watched.until(lambda: server.lists == 3)
    assert watched.cache.version in (7, 40)
    await watched.until(lambda: watched.cache.version == 40)
    assert _kept(watched) == [None, None, None]


async def test_an_idle_watch_is_not_trusted(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is open, and nothing comes: a list finds what it did not say."""
    watched.server.objects = [make_object("two", 1)]
    watched.server.version = 40
    monkeypatch.setattr(list_watch, "IDLE_SECONDS", 0.2)
    watched.server.send("MODIFIED", make_object("two", 8))
    await watched.until(lambda: watched.cache.version == 40)
    assert _kept(watched) == [None, "two", None]
    assert "neither an event nor a bookmark" in caplog.text


async def test_bookmarks_alone_keep_a_watch_trusted(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_watch, "IDLE_SECONDS", 5.0)
    watched.server.send("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    await watched.until(lambda: watched.cache.version == 20)
    assert watched.server.lists == 1


async def test_a_deletion_that_a_watch_leaves_out_is_found_by_a_list_in_the_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch stays open, and its bookmarks come. Nobody asks for the object."""
    server = watched.server
    server.objects, server.version = [make_object("two", 1)], 9
    server.send("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    server.lines.put_nowait(None)
    await watched.watches(2)
    assert _kept(watched) == ["one", "two", None]
    monkeypatch.setattr(list_watch, "RELIST_SECONDS", (0.0, 0.0))
    watched.watch._relist_at = 0.0  # an hour has passed
    server.lines.put_nowait(None)
    await watched.expect(("one", False))
    assert _kept(watched) == [None, "two", None]


async def test_a_deletion_that_a_watch_leaves_out_is_found_sooner_where_an_answer_lacked_the_object(
    watched: Watched,
) -> None:
    server = watched.server
    server.objects, server.version = [make_object("two", 1)], 9
    await watched.watch.refresh()
    assert _kept(watched) == [None, "two", None]
    server.send("BOOKMARK", {"metadata": {"resourceVersion": "12"}})
    await watched.expect(("one", False))
    assert _kept(watched) == [None, "two", None]
    assert (server.lists, watched.cache.version) == (3, 9)


async def test_all_is_listed_again_between_half_an_hour_and_an_hour_after_the_last_list(
    watched: Watched,
) -> None:
    first, last = list_watch.RELIST_SECONDS
    assert (first, last) == (1800.0, 3600.0)
    assert first <= watched.watch._relist_at - watched.watch._received_at <= last
    assert watched.server.lists == 1


@pytest.mark.parametrize(
    "event",
    [
        {"type": "MODIFIED", "object": make_object("new", 3)},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "3"}}},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "x"}}},
        {"type": "ADDED", "object": make_object("new", 0)},
    ],
)
async def test_a_version_that_goes_back_or_is_no_number_ends_in_a_list(
    watched: Watched, event: Object
) -> None:
    watched.server.version = 40
    watched.server.send(event["type"], event["object"])
    await watched.until(lambda: watched.cache.version == 40)
    assert _kept(watched) == ["one", "two", None]


async def test_an_object_that_its_reader_fails_on_is_known_and_hides_no_other(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.objects[0]["metadata"]["name"] = "bad"
    async with Watched(server) as watched:
        await watched.expect(("bad", False), ("two", False))
        bad = watched.cache.get(("a", "bad"))
    assert bad is not None
    assert bad.value is None
    assert _kept(watched) == [None, "two", None]
    assert "/things: a/bad cannot be kept: RecursionError" in caplog.text


async def test_objects_that_a_list_shows_as_they_were_are_not_read_again(
    watched: Watched,
) -> None:
    before = watched.cache.get(("a", "two"))
    watched.server.version = 40
    watched.server.send("ERROR", {"code": 410})
    await watched.until(lambda: watched.cache.version == 40)
    assert watched.cache.get(("a", "two")) is before


# --- pages ----------------------------------------------------------------------------------------


async def test_a_list_is_read_in_pages(server: FakeApiServer) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(250)]
    async with Watched(server) as watched:
        await watched.expect(*((f"n{number}", False) for number in range(250)))
    assert server.limits == [100, 100, 100]


async def test_a_token_that_is_too_old_begins_the_list_again(server: FakeApiServer) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(150)]
    server.expired_tokens = 1
    async with Watched(server) as watched:
        await watched.expect(*((f"n{number}", False) for number in range(150)))
    assert server.lists == 2


async def test_what_a_page_shows_does_not_wait_for_the_others(server: FakeApiServer) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(150)]
    server.last_page.clear()
    first = [(f"n{number}", False) for number in range(100)]
    async with Watched(server) as watched:
        await watched.expect(*first)
        assert len(watched.cache.all_keys()) == 100
        server.last_page.set()
        await watched.until(watched.watch.listed.is_set)
        assert {*watched.changes} >= {(f"n{number}", False) for number in range(100, 150)}
        watched.changes.clear()
        server.objects[0] = make_object("n0", 8, generation=2)
        server.last_page.clear()
        server.send("ERROR", {"code": 410})
        await watched.expect(("n0", False))
        seen = watched.cache.get(("a", "n0"))
        assert seen is not None
        assert seen.version == 8, "memory shows what was reported"


async def test_a_list_that_takes_longer_than_its_version_is_kept_goes_on_and_ends(
    server: FakeApiServer,
) -> None:
    """Or it would begin again and again. The watch repeats what happened since it began."""
    server.objects = [make_object(f"n{number}", 1) for number in range(250)]
    server.expired_tokens, server.renews_tokens = 1, True
    async with Watched(server) as watched:
        await watched.watches(1)
        assert len(watched.cache.all_keys()) == 250
    assert (server.lists, server.limits, server.version) == (1, 4 * [100], 8)
    assert server.watched_from == ["7"]


async def test_a_token_that_is_never_taken_ends_the_list(server: FakeApiServer) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(150)]
    server.expired_tokens, server.renews_tokens = 2, True
    async with Watched(server) as watched:
        await watched.watches(1)
    assert server.lists == 2


@pytest.mark.parametrize(("renews", "more"), [(True, {}), (False, {"metadata": "odd"})])
async def test_a_consistent_list_never_goes_on_in_another_version(
    server: FakeApiServer, renews: bool, more: dict[str, object]
) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(150)]
    async with Watched(server) as watched:
        await watched.watches(1)
        server.expired_tokens, server.renews_tokens, server.more = 1, renews, more
        with pytest.raises(ClusterError, match="410 the token has expired"):
            await watched.watch.refresh()


def count_of_unreadable() -> float:
    """What a scrape shows of the collection."""
    name = "reflector_unreadable_objects_total"
    return REGISTRY.get_sample_value(name, {"name": "things"}) or 0.0


async def test_an_object_that_cannot_be_read_is_named_and_counted_and_hides_no_other(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.objects = [make_object(f"n{number}", 1) for number in range(230)]
    server.unreadable = {"n120"}
    before = count_of_unreadable()
    async with Watched(server) as watched:
        others = [(f"n{number}", False) for number in range(230) if number != 120]
        await watched.expect(*others)
    assert "/things: n120 cannot be read and is skipped" in caplog.text
    assert count_of_unreadable() == before + 1
    assert watched.watch.left_out == {"n120"}
    assert server.limits.count(1) == 102, "its page one by one, its metadata, and its name"
    assert server.limits[-1] == 100


async def test_a_large_object_that_nobody_can_read_is_known_without_its_value(
    server: FakeApiServer,
) -> None:
    server.large = {"one"}
    async with Watched(server) as watched:
        await watched.expect(("one", False), ("two", False))
        seen = watched.cache.get(("a", "one"))
        assert seen is not None
        assert _kept(watched) == [None, "two", None]


async def test_an_object_that_becomes_unreadable_does_not_count_as_deleted(
    watched: Watched,
) -> None:
    server = watched.server
    server.unreadable = {"one"}
    server.objects[1] = make_object("two", 9)
    server.send("ERROR", {"code": 410})
    await watched.expect(("two", True))
    await watched.watches(2)
    assert watched.changes == []


async def test_a_consistent_list_shows_all_but_what_cannot_be_read(watched: Watched) -> None:
    """One object of a tenant made each such list fail, and it was repeated for ever."""
    server = watched.server
    server.unreadable, server.version = {"one"}, 9
    server.objects = [make_object("one", 8), make_object("three", 9)]
    await watched.watch.refresh()
    assert watched.watch.left_out == {"one"}
    assert _kept(watched) == ["one", None, "three"]


@pytest.mark.parametrize("size", [WHOLE_LINE_BYTES, 2 * MOST_BYTES])
async def test_an_object_that_grows_too_long_for_a_line_ends_no_watch(
    watched: Watched, size: int
) -> None:
    server = watched.server
    large = functools.partial(make_object, "one", annotations={"a": "x" * size})
    server.send("MODIFIED", large(8))
    server.send("MODIFIED", make_object("two", 9))
    await watched.expect(("one", True), ("two", True))
    assert [seen.value for seen in map(watched.cache.watched, KEYS) if seen] == [None, "two"]
    server.send("DELETED", large(10))
    await watched.expect(("one", False))
    assert (server.lists, server.watched_from) == (1, ["7"])


async def test_a_large_object_whose_fields_are_in_another_order_is_read_whole(
    watched: Watched,
) -> None:
    metadata = make_object("one", 8)["metadata"]
    before = {"annotations": {"a": "x" * WHOLE_LINE_BYTES}}
    watched.server.send("MODIFIED", {"metadata": before | metadata})
    await watched.expect(("one", True))
    assert [seen.value for seen in map(watched.cache.watched, KEYS) if seen] == ["one", "two"]


async def test_a_list_in_which_not_even_a_name_can_be_read_is_tried_again(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.unreadable, server.nameless = {"two"}, True
    async with Watched(server) as watched:
        await watched.until(lambda: server.lists > 3)
        server.nameless = False
        await watched.until(lambda: bool(server.watched_from))
        assert watched.changes == [("one", False)]
    assert all("cannot read the answer" in r.message for r in _warnings(caplog))


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelname == "WARNING"]


async def test_a_page_is_bounded_in_bytes(server: FakeApiServer) -> None:
    half = "x" * (MOST_BYTES // 2)
    server.objects = [make_object(name, 1, annotations={"a": half}) for name in "abc"]
    async with server.connect() as connection:
        collection = Collection(connection, "/things")
        with pytest.raises(UnreadableError, match=f"more than {MOST_BYTES} bytes"):
            await collection.page(3, "")
        found = [page async for page in pages(collection, 3)]
    assert [page.objects[0]["metadata"]["name"] for page in found] == ["a", "b", "c"]


@pytest.mark.parametrize(("most_of_one", "kept"), [(32 * 1024, 0), (64 * 1024, 10**6 / 2)])
async def test_what_a_cache_does_not_keep_is_not_held_while_it_is_listed_either(
    server: FakeApiServer, most_of_one: int, kept: float
) -> None:
    """Values that are too large, or too many: 16 MB come before the last page of 4 MB."""
    text = {"spec": {"text": "x" * 40_000}}
    server.objects = [{**make_object(f"n{number}", 1), **text} for number in range(500)]
    server.last_page.clear()
    cache: ObjectCache[str] = ObjectCache(10**6, most_of_one)
    async with server.connect() as connection:
        collection, keep = Collection(connection, "/things"), keep_text("Thing", "spec")
        watch = ListWatch(collection, cache, lambda _: None, keep)
        tracemalloc.start()
        listing = asyncio.create_task(watch.run())
        try:
            await until("all but the last page", lambda: server.limits == 5 * [100])
            held, _ = tracemalloc.get_traced_memory()
            server.last_page.set()
            await until("the whole list", watch.listed.is_set)
        finally:
            tracemalloc.stop()
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
    assert held < 3 * MOST_BYTES, "two pages, and what is kept"
    assert len(cache.all_keys()) == 500
    assert cache.size == pytest.approx(kept, rel=0.2)


async def test_no_server_at_all_is_an_error_in_words() -> None:
    async with FakeApiServer() as server:
        connection = server.connect()
    async with connection:
        with pytest.raises(
            ClusterError, match=r"^GET /things: no answer from http.*: Connection refused$"
        ):
            await Collection(connection, "/things").page(1, "")


async def test_however_many_watches_there_are_requests_go_through(server: FakeApiServer) -> None:
    async def watch(collection: Collection) -> None:
        async for _ in collection.watch("7", 60):
            pass

    many = REQUESTS_AT_ONCE + 8
    async with server.connect() as connection:
        collection = Collection(connection, "/things")
        watches = [asyncio.create_task(watch(collection)) for _ in range(many)]
        await asyncio.to_thread(
            wait_until, "all watches", lambda: len(server.watched_from) == many, seconds=10
        )
        async with asyncio.timeout(10):
            assert (await collection.page(1, "")).objects
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def test_lines_come_whole_however_the_stream_is_cut() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"a", b"b\nc\n\n", b"d", b"\n", b"cut"):
            yield chunk

    assert [line async for line in split_lines(chunks())] == [b"ab", b"c", b"", b"d"]


async def test_a_line_without_end_is_not_kept_in_memory() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"a" * 1_000_000
            _, peak = tracemalloc.get_traced_memory()
            assert peak < 3 * MOST_BYTES
        yield b"bc\nd\n"

    tracemalloc.start()
    try:
        lines = [line async for line in split_lines(chunks())]
    finally:
        tracemalloc.stop()
    assert lines == [b"a" * (MOST_BYTES + 1), b"d"]
