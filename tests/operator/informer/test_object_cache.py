"""The cache beside a model of an API server: whatever comes late, twice or not at all, a read is
the newest state that this process received, and never an older one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from regroup_operator.api.resource import Key
from regroup_operator.informer.object_cache import (
    Change,
    ObjectCache,
    OutOfOrderError,
    Seen,
    SharedBytes,
)

SUBJECTS = (("a", "one"), ("a", "two"))
KEYS = [("a", f"pod{number}") for number in range(3)]


def make_seen(name: str = "pod0", version: int = 1, **fields: Any) -> Seen[str]:
    """An object of subject `one`."""
    given: dict[str, Any] = {
        "key": ("a", name),
        "uid": f"uid-{name}",
        "version": version,
        "generation": 1,
        "subject": SUBJECTS[0],
        "value": f"{name}@{version}",
        "size": 10,
    }
    return Seen(**{**given, **fields})


def make_cache(
    *listed: Seen[str], version: int = 10, most_bytes: int = 1000, most_of_one: int = 100
) -> ObjectCache[str]:
    """A cache that has listed these objects."""
    cache: ObjectCache[str] = ObjectCache(most_bytes, most_of_one)
    cache.replace({seen.key: seen for seen in listed}, version, cache.begin_list())
    return cache


def value_of(cache: ObjectCache[str]) -> str | None:
    """Of the one object."""
    (seen,) = cache.of(SUBJECTS[0])
    return seen.value


# --- what a read shows ----------------------------------------------------------------------------


def test_an_answer_counts_at_once_and_until_the_watch_has_passed_it() -> None:
    cache = make_cache(make_seen(version=5))
    cache.note(make_seen(version=12))
    assert cache.get(("a", "pod0")) == make_seen(version=12)
    cache.apply(make_seen(version=11))
    assert cache.get(("a", "pod0")) == make_seen(version=12)
    cache.apply(make_seen(version=12))
    cache.apply(make_seen(version=13), deleted=True)
    assert cache.get(("a", "pod0")) is None


def test_an_answer_that_comes_after_the_deletion_brings_back_no_ghost() -> None:
    cache = make_cache()
    cache.apply(make_seen(version=11))
    cache.apply(make_seen(version=12), deleted=True)
    cache.note(make_seen(version=11))
    assert cache.of(SUBJECTS[0]) == []


def test_a_list_after_410_finds_what_was_deleted_meanwhile() -> None:
    cache = make_cache(make_seen("pod0"), make_seen("pod1"))
    began = cache.begin_list()
    changes = cache.replace({("a", "pod1"): make_seen("pod1")}, 20, began)
    assert changes == [Change(SUBJECTS[0], make_seen("pod0"), None)]
    assert [seen.key for seen in cache.of(SUBJECTS[0])] == [("a", "pod1")]


def test_a_list_contains_what_was_answered_before_it_began_and_no_more() -> None:
    cache = make_cache()
    cache.note(make_seen("pod0", 12))
    began = cache.begin_list()
    cache.note(make_seen("pod1", 15))
    cache.replace({}, 14, began)
    assert [seen.key for seen in cache.of(SUBJECTS[0])] == [("a", "pod1")]


def test_a_list_of_an_older_version_replaces_everything() -> None:
    """An etcd that was restored from a backup goes back."""
    cache = make_cache(make_seen("pod0", 90), version=100)
    cache.note(make_seen("pod1", 110))
    cache.replace({("a", "pod2"): make_seen("pod2", 30)}, 40, cache.begin_list())
    assert [seen.key[1] for seen in cache.of(SUBJECTS[0])] == ["pod2"]
    cache.apply(make_seen("pod2", 41))
    assert cache.version == 41


def test_a_consistent_list_of_one_subject_shows_what_is_gone() -> None:
    cache = make_cache(make_seen("pod0"), make_seen("pod1"), make_seen("x", subject=SUBJECTS[1]))
    cache.note_list(SUBJECTS[0], [make_seen("pod2", 15)], 20)
    assert [seen.key[1] for seen in cache.of(SUBJECTS[0])] == ["pod2"]
    assert len(cache.of(SUBJECTS[1])) == 1
    cache.note(make_seen("pod1", 19))
    assert cache.get(("a", "pod1")) is None, "the list is newer"
    cache.note(make_seen("pod1", 21))
    assert cache.get(("a", "pod1")) is not None


def test_an_object_that_changes_its_subject_is_news_for_both() -> None:
    cache = make_cache(make_seen())
    changes = cache.apply(make_seen(version=11, subject=SUBJECTS[1]))
    assert {change.subject for change in changes} == set(SUBJECTS)
    assert cache.of(SUBJECTS[0]) == []
    assert len(cache.of(SUBJECTS[1])) == 1


def test_a_list_that_lacks_an_object_of_another_subject_does_not_hide_it() -> None:
    cache = make_cache(make_seen())
    cache.note_list(SUBJECTS[0], [], 20)
    cache.apply(make_seen(version=11, subject=SUBJECTS[1]))
    assert cache.of(SUBJECTS[0]) == []
    assert len(cache.of(SUBJECTS[1])) == 1


def test_events_that_are_repeated_change_nothing_and_late_ones_ask_for_a_list() -> None:
    cache = make_cache(make_seen(version=5))
    assert cache.apply(make_seen(version=5)) == []
    assert cache.apply(make_seen("pod1", 7), deleted=True) == []
    with pytest.raises(OutOfOrderError, match="version 7 after 10"):
        cache.apply(make_seen("pod1", 7))
    with pytest.raises(OutOfOrderError):
        cache.apply(make_seen(version=7), deleted=True)
    with pytest.raises(OutOfOrderError):
        cache.bookmark(9)


def test_what_a_list_has_shown_of_a_later_version_is_not_undone_by_what_led_to_it() -> None:
    cache = make_cache(make_seen(version=15), version=10)
    cache.note(make_seen(version=12))
    assert value_of(cache) == "pod0@15"
    assert cache.apply(make_seen(version=13)) == []
    assert cache.apply(make_seen(version=14), deleted=True) == []
    assert (value_of(cache), cache.version) == ("pod0@15", 14)
    cache.apply(make_seen(version=16))
    assert value_of(cache) == "pod0@16"


def test_all_that_is_known_is_what_answers_have_shown_too() -> None:
    cache = make_cache(make_seen("pod0"), make_seen("pod1"))
    cache.note(make_seen("pod2", 12, subject=SUBJECTS[1]))
    cache.note_list(SUBJECTS[0], [make_seen("pod0")], 13)
    assert cache.all_keys() == [("a", "pod0"), ("a", "pod2")]
    assert cache.subjects() == set(SUBJECTS)


def test_an_event_without_a_value_keeps_the_one_of_this_state_and_of_no_other() -> None:
    """The watch of jobs brings metadata alone."""
    cache = make_cache(make_seen())
    cache.apply(make_seen(version=11, value=None, size=0))
    assert value_of(cache) is None
    cache.note(make_seen(version=11))
    assert value_of(cache) == "pod0@11", "an answer to GET fills what the watch has left open"
    cache.note(make_seen(version=12))
    cache.apply(make_seen(version=12, value=None, size=0))
    assert value_of(cache) == "pod0@12", "that of an own write is there when its event comes"
    cache.apply(make_seen(version=13, uid="uid-later", value=None, size=0))
    cache.note(make_seen(version=12))
    assert value_of(cache) is None


# --- bounds ---------------------------------------------------------------------------------------


def test_a_value_that_is_too_large_is_not_kept_and_the_object_is_known() -> None:
    cache = make_cache(make_seen(size=101), most_of_one=100)
    (seen,) = cache.of(SUBJECTS[0])
    assert (seen.value, seen.size, seen.version) == (None, 0, 1)


def test_all_values_together_have_a_bound_and_what_goes_makes_room() -> None:
    cache = make_cache(make_seen("pod0"), make_seen("pod1"), most_bytes=45)
    cache.apply(make_seen("pod2", 11))
    cache.note(make_seen("pod3", 12))
    assert [seen.value is None for seen in cache.of(SUBJECTS[0])] == [False, False, True, True]
    assert cache.size == 20
    cache.apply(make_seen("pod0", 13), deleted=True)
    cache.apply(make_seen("pod2", 14))
    assert [seen.value for seen in cache.of(SUBJECTS[0])] == ["pod1@1", "pod2@14"]


def test_a_namespace_that_has_filled_memory_leaves_room_for_another() -> None:
    flood = [make_seen(f"pod{number}") for number in range(500)]
    cache = make_cache(*flood, most_bytes=1000)
    assert cache.size == 500
    for number in range(20):
        cache.apply(make_seen(version=11 + number, key=("b", f"pod{number}"), subject=("b", "one")))
    assert all(seen.value for seen in cache.of(("b", "one")))


def test_caches_that_share_a_bound_keep_as_much_together_as_one_alone() -> None:
    shared = SharedBytes()
    first, other = (ObjectCache[str](1000, 100, shared) for _ in range(2))
    for number in range(60):
        first.note(make_seen(f"pod{number}", key=("a", f"pod{number}")))
    assert (first.size, other.size) == (500, 500), "it leaves as much as it takes"
    other.note(make_seen(key=("b", "pod0"), subject=("b", "one")))
    assert all(seen.value for seen in other.of(("b", "one")))
    first.replace({}, 100, first.begin_list())
    assert other.size == 10


def test_lists_that_are_read_at_the_same_time_hold_together_as_much_as_one_cache() -> None:
    shared = SharedBytes()
    first, other = (ObjectCache[str](1000, 100, shared) for _ in range(2))
    with first.listing() as one, other.listing() as two:
        one.add(make_seen(size=101))
        for number in range(60):
            one.add(make_seen(f"pod{number}", key=("a", f"pod{number}")))
            two.add(make_seen(f"pod{number}", key=("b", f"pod{number}")))
        assert shared.listed.total < 1000
        assert one.objects["a", "pod1"].value
    assert (shared.listed.total, first.size) == (0, 0)


def test_what_the_pages_of_a_list_have_shown_takes_no_room_from_the_whole_list() -> None:
    cache: ObjectCache[str] = ObjectCache(1000, 100)
    began, pods = cache.begin_list(), [make_seen(f"pod{number}") for number in range(40)]
    for pod in pods:
        cache.note(pod)
    cache.replace({pod.key: pod for pod in pods}, 10, began)
    assert (cache.size, len(cache.all_keys())) == (400, 40)


def test_what_a_list_shows_as_it_was_takes_no_room_and_stays() -> None:
    known = make_seen(size=100)
    cache = make_cache(known, most_bytes=200)
    with cache.listing() as listing:
        listing.add(known)
        listing.add(make_seen("pod1", size=100))
        assert cache.replace(listing.objects, 20, cache.begin_list())
    assert [seen.value is None for seen in cache.of(SUBJECTS[0])] == [False, True]


def test_an_object_that_becomes_unreadable_is_known_without_its_value() -> None:
    cache = make_cache(make_seen())
    assert cache.replace({}, 20, cache.begin_list(), unreadable={"pod0"}) == []
    (seen,) = cache.of(SUBJECTS[0])
    assert seen.value is None


def test_a_late_answer_shows_no_object_that_a_list_of_all_lacked() -> None:
    cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
    cache.replace({}, 1, cache.begin_list())
    cache.note_all({}, 3)
    cache.note(make_seen(version=2))
    assert cache.get(KEYS[0]) is None
    cache.note(make_seen(version=4))
    assert cache.get(KEYS[0]) is not None
    cache.replace({}, 1, cache.begin_list())  # the API server was restored from a backup
    cache.note(make_seen(version=2))
    assert cache.get(KEYS[0]) is not None


# --- a watch that leaves something out ------------------------------------------------------------


def test_a_late_list_of_the_watch_shows_no_object_that_a_list_of_all_lacked() -> None:
    cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
    cache.replace({}, 1, cache.begin_list())
    began = cache.begin_list()
    for version in (2, 3):
        cache.note_all({("a", "kept"): make_seen("kept", 2)}, version)
    listed = {("a", name): make_seen(name, 2) for name in ("gone", "kept")}
    cache.replace(listed, 2, began)
    assert cache.get(("a", "gone")) is None
    assert cache.get(("a", "kept")) is not None


def test_what_a_list_of_all_could_not_read_is_not_gone_when_a_late_watch_shows_it() -> None:
    cache = make_cache(make_seen())
    cache.note_all({}, 20, {"pod0", "pod1"})
    cache.apply(make_seen("pod1", version=11))
    assert [cache.get(("a", name)) is not None for name in ("pod0", "pod1")] == [True, True]
    cache.bookmark(20)


def test_a_bookmark_that_hides_what_a_list_of_one_subject_lacked_asks_for_a_list() -> None:
    cache = make_cache(make_seen())
    cache.note_list(SUBJECTS[0], [], 20)
    cache.bookmark(19)
    with pytest.raises(OutOfOrderError, match="version 20 without a change of a/pod0"):
        cache.bookmark(20)
    assert cache.get(("a", "pod0")) is None, "it does not come back"


@pytest.mark.parametrize("shown", [None, 11])
def test_a_bookmark_that_hides_what_an_answer_has_shown_asks_for_a_list(shown: int | None) -> None:
    cache = make_cache(make_seen())
    cache.note(make_seen(version=12))
    if shown:
        cache.apply(make_seen(version=shown))
    with pytest.raises(OutOfOrderError, match="without a change of a/pod0"):
        cache.bookmark(20)
    assert cache.get(("a", "pod0")) == make_seen(version=12)


def test_a_bookmark_that_hides_what_an_answer_has_shown_to_be_new_asks_for_a_list() -> None:
    """Otherwise a worker that was just made would leave memory without a word."""
    cache = make_cache()
    cache.note(make_seen(version=12))
    cache.apply(make_seen("pod1", 13))
    with pytest.raises(OutOfOrderError, match="without a change of a/pod0"):
        cache.bookmark(20)


def test_a_bookmark_after_an_object_has_come_and_gone_asks_for_nothing() -> None:
    cache = make_cache()
    cache.note(make_seen(version=12))
    cache.apply(make_seen(version=12))
    cache.note(make_seen(version=14))
    cache.apply(make_seen(version=15), deleted=True)
    cache.bookmark(20)
    assert cache.of(SUBJECTS[0]) == []


def test_bookmarks_after_what_answers_have_shown_and_more_ask_for_nothing() -> None:
    listed = [make_seen(f"pod{n}") for n in range(4)]
    cache = make_cache(*listed)
    cache.note_list(SUBJECTS[0], [make_seen("pod3", 15)], 16)
    cache.apply(make_seen("pod0", 11), deleted=True)
    cache.apply(make_seen("pod1", 12, subject=SUBJECTS[1]))
    cache.apply(make_seen("pod2", 13), deleted=True)
    cache.apply(make_seen("pod3", 15))
    cache.apply(make_seen("pod2", 18, uid="new"))
    cache.bookmark(20)
    assert [seen.key[1] for seen in cache.of(SUBJECTS[0])] == ["pod2", "pod3"]


# --- beside a model of an API server --------------------------------------------------------------


@dataclass
class Model:
    """All states that a collection ever had."""

    revision: int = 0
    states: dict[Key, list[tuple[int, Seen[str] | None]]] = field(default_factory=dict)
    events: list[tuple[int, Seen[str], bool]] = field(default_factory=list)

    def write(self, key: Key, subject: Key | None) -> Seen[str]:
        """Create or change an object; without a subject, delete it. Returns what a write
        answers.
        """
        self.revision += 1
        former = self.at(key, self.revision)
        is_new = former is None or subject is None
        seen = Seen(
            key,
            f"uid{self.revision}" if former is None else former.uid,
            self.revision,
            1,
            subject or (former.subject if former else SUBJECTS[0]),
            f"{key[1]}@{self.revision}",
            1,
        )
        assert is_new or former is not None
        self.states.setdefault(key, []).append((self.revision, seen if subject else None))
        self.events.append((self.revision, seen, subject is None))
        return seen

    def at(self, key: Key, version: int) -> Seen[str] | None:
        """An object as it was at this version."""
        past = [seen for revision, seen in self.states.get(key, []) if revision <= version]
        return past[-1] if past else None

    def all_at(self, version: int) -> dict[Key, Seen[str]]:
        """The whole collection as it was."""
        found = ((key, self.at(key, version)) for key in KEYS)
        return {key: seen for key, seen in found if seen}


class Beside(RuleBasedStateMachine):
    """Answers, events and lists are on their way for as long as hypothesis likes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
        self.shown = 0
        """What the watch has delivered."""
        self.known: dict[Key, tuple[int, Key | None]] = {}
        """Key -> the version that an answer has shown, and of which subject's list."""
        self.answers: list[Seen[str]] = []
        self.lists: list[tuple[Key, int]] = []
        self.lists_of_all: list[int] = []
        self.whole_list: tuple[int, int] | None = None

    @initialize(before=st.lists(st.sampled_from(KEYS), max_size=3))
    def first_list(self, before: list[Key]) -> None:
        for key in before:
            self.model.write(key, SUBJECTS[0])
        self.model.revision += 1
        self._take_list(self.model.revision, self.cache.begin_list())

    def _take_list(self, version: int, began: int) -> None:
        self.cache.replace(self.model.all_at(version), version, began)
        self.shown = version

    # --- what happens at the server ---------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), subject=st.sampled_from(SUBJECTS))
    def others_write(self, key: Key, subject: Key) -> None:
        self.model.write(key, subject)

    @rule(key=st.sampled_from(KEYS))
    def others_delete(self, key: Key) -> None:
        if self.model.at(key, self.model.revision):
            self.model.write(key, None)

    @rule()
    def something_else_happens_in_the_cluster(self) -> None:
        self.model.revision += 1

    @rule(key=st.sampled_from(KEYS), subject=st.sampled_from(SUBJECTS), is_lost=st.booleans())
    def this_process_writes(self, key: Key, subject: Key, is_lost: bool) -> None:
        former = self.model.at(key, self.model.revision)
        seen = self.model.write(key, former.subject if former else subject)
        if not is_lost:
            self.answers.append(seen)

    @rule(subject=st.sampled_from(SUBJECTS))
    def this_process_asks_for_a_list_of_one_subject(self, subject: Key) -> None:
        self.lists.append((subject, max(self.model.revision, 1)))

    @rule()
    def this_process_asks_for_all_beside_the_watch(self) -> None:
        self.lists_of_all.append(max(self.model.revision, 1))

    @rule()
    @precondition(lambda self: self.whole_list is None)
    def this_process_asks_for_a_whole_list(self) -> None:
        self.whole_list = (self.model.revision, self.cache.begin_list())

    # --- what arrives -----------------------------------------------------------------------------

    @rule(data=st.data())
    @precondition(lambda self: self.answers)
    def an_answer_arrives(self, data: st.DataObject) -> None:
        seen = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.cache.note(seen)
        self._learn(seen.key, seen.version, None)

    @rule(data=st.data())
    @precondition(lambda self: self.lists)
    def a_list_of_one_subject_arrives(self, data: st.DataObject) -> None:
        subject, version = self.lists.pop(data.draw(st.integers(0, len(self.lists) - 1)))
        listed = [s for s in self.model.all_at(version).values() if s.subject == subject]
        known = {seen.key for seen in self.cache.of(subject)}
        self.cache.note_list(subject, listed, version)
        for key in known | {seen.key for seen in listed}:
            self._learn(key, version, subject)

    @rule(data=st.data())
    @precondition(lambda self: self.lists_of_all)
    def a_list_of_all_arrives_beside_the_watch(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.lists_of_all) - 1))
        version = self.lists_of_all.pop(which)
        self.cache.note_all(self.model.all_at(version), version)
        for key in KEYS:
            self._learn(key, version, None)

    def _learn(self, key: Key, version: int, subject: Key | None) -> None:
        if version > max(self.shown, self.known.get(key, (0, None))[0]):
            self.known[key] = (version, subject)

    @rule()
    @precondition(lambda self: self.whole_list is not None)
    def the_whole_list_arrives(self) -> None:
        assert self.whole_list is not None
        version, began = self.whole_list
        self.whole_list = None
        if version >= self.shown:
            self._take_list(version, began)

    @rule()
    def the_next_event_arrives(self) -> None:
        for version, seen, deleted in self.model.events:
            if version > self.shown:
                self.cache.apply(seen, deleted=deleted)
                self.shown = version
                return

    @rule(data=st.data())
    @precondition(lambda self: self.model.events)
    def an_event_is_repeated(self, data: st.DataObject) -> None:
        version, seen, deleted = data.draw(st.sampled_from(self.model.events))
        if version <= self.shown:
            before = self._reads()
            try:
                assert self.cache.apply(seen, deleted=deleted) == []
            except OutOfOrderError:
                assert (self.model.at(seen.key, self.shown) is None) != deleted
            assert self._reads() == before

    @rule()
    def an_event_is_late(self) -> None:
        coming = [event for event in self.model.events if event[0] > self.shown]
        if len(coming) < 2 or self.whole_list:
            return
        (_, late, was_deleted), (version, sooner, deleted), *_ = coming
        self.cache.apply(sooner, deleted=deleted)
        try:
            assert self.cache.apply(late, deleted=was_deleted) == []
        except OutOfOrderError:
            self._take_list(self.model.revision, self.cache.begin_list())
            return
        self.shown = version

    @rule()
    def a_bookmark_arrives(self) -> None:
        coming = [version for version, *_ in self.model.events if version > self.shown]
        self.shown = min(coming) - 1 if coming else self.model.revision
        self.cache.bookmark(self.shown)

    # --- what must hold ---------------------------------------------------------------------------

    def _reads(self) -> dict[Key, Seen[str] | None]:
        return {key: self.cache.get(key) for key in KEYS}

    @invariant()
    def a_read_is_the_newest_state_that_was_shown(self) -> None:
        for key, seen in self._reads().items():
            version, subject = self.known.get(key, (0, None))
            expected = self.model.at(key, max(version, self.shown))
            lacked = subject is not None and (expected is None or expected.subject != subject)
            if version > self.shown and lacked and seen is not None:
                # The list of one subject says nothing of an object that has another by now.
                assert seen.subject != subject
                assert seen == self.model.at(key, self.shown)
            elif not (version > self.shown and lacked):
                assert seen == expected, (key, self.shown, version)

    @invariant()
    def a_subject_has_exactly_its_objects(self) -> None:
        reads = [seen for seen in self._reads().values() if seen]
        for subject in SUBJECTS:
            assert self.cache.of(subject) == [seen for seen in reads if seen.subject == subject]

    @invariant()
    def all_sizes_add_up(self) -> None:
        assert self.cache.size >= len([seen for seen in self._reads().values() if seen])

    def teardown(self) -> None:
        """After one more list the cache is the collection."""
        self._take_list(self.model.revision, self.cache.begin_list())
        assert {k: s for k, s in self._reads().items() if s} == self.model.all_at(self.shown)
        assert self.cache.size == len(self.model.all_at(self.shown))


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
