"""The objects of one collection in memory, with what is known of them beyond the watch. Pure.

The cache has two layers. The lower one is the collection at one version: that of the list, or of
the last event or bookmark. The upper one holds what requests of this process have shown of single
objects at a later version. An entry of the upper layer counts until the lower one has reached its
version. So a read shows each write of this process that was answered, and no answer that comes
late brings back what the watch has shown to be gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from regroup_operator.api.resource import Key
from regroup_operator.informer.resource_version import NEVER

T = TypeVar("T")


class OutOfOrderError(ValueError):
    """An event that should have come earlier: something may be missing, and a list is needed."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What is remembered of an object."""

    key: Key
    uid: str
    version: int
    generation: int
    """metadata.generation: the API server raises it with every change of the spec."""
    subject: Key
    """What its changes are reported with, and what it is found by: the job that it belongs to."""
    value: T | None = None
    """None: it is not kept, and whoever wants it asks the API server."""
    size: int = 0
    """Bytes of the value, about."""


@dataclass(frozen=True)
class Change(Generic[T]):
    """Something has happened to an object of this subject."""

    subject: Key
    before: Seen[T] | None
    """None: there was no object, or it was of another subject."""
    after: Seen[T] | None
    """None: the object is gone, or of another subject now."""

    @property
    def same_spec(self) -> bool:
        """Whether the spec is what it was: at most labels or status have changed."""
        before, after = self.before, self.after
        return bool(
            before and after and (before.uid, before.generation) == (after.uid, after.generation)
        )


@dataclass(frozen=True, slots=True)
class _Ahead(Generic[T]):
    """What an answer has shown of one object."""

    seen: Seen[T] | None
    """None: it is gone."""
    version: int
    """Of the collection, in which this was so."""
    subject: Key
    number: int
    """Of the answer."""

    @property
    def size(self) -> int:
        return self.seen.size if self.seen else 0


@dataclass(frozen=True)
class _Whole:
    """The newest list of all objects beside the watch. An answer that comes after it and is older
    may show an object that it lacked.
    """

    version: int = NEVER
    number: int = 0
    """How many answers there were with it."""
    unreadable: Collection[str] = ()
    """Names of what it had and could not be read."""


class _Entry(Protocol):
    @property
    def subject(self) -> Key: ...

    @property
    def size(self) -> int: ...


E = TypeVar("E", bound=_Entry)


class HeldBytes:
    """How many bytes of values are held together."""

    def __init__(self) -> None:
        self.total = 0
        self.by_namespace: Counter[str] = Counter()
        """Of each namespace that has values."""

    def add(self, namespace: str, size: int) -> None:
        """A value has come; of one that is dropped, `size` is negative."""
        self.total += size
        self.by_namespace[namespace] += size
        if not self.by_namespace[namespace]:
            del self.by_namespace[namespace]


@dataclass(frozen=True)
class SharedBytes:
    """What all caches with one bound hold. Their lists may take as much again while they are read,
    and no more.
    """

    kept: HeldBytes = field(default_factory=HeldBytes)
    listed: HeldBytes = field(default_factory=HeldBytes)


class _Layer(Generic[E]):
    """Entries by key and by subject."""

    def __init__(self, held: HeldBytes) -> None:
        self.entries: dict[Key, E] = {}
        self._held = held
        self._keys: dict[Key, dict[Key, None]] = {}

    def put(self, key: Key, entry: E) -> None:
        self.pop(key)
        self.entries[key] = entry
        self._held.add(key[0], entry.size)
        self._keys.setdefault(entry.subject, {})[key] = None

    def pop(self, key: Key) -> E | None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._held.add(key[0], -entry.size)
            keys = self._keys[entry.subject]
            del keys[key]
            if not keys:
                del self._keys[entry.subject]
        return entry

    def subjects(self) -> Iterable[Key]:
        return self._keys

    def keys_of(self, subject: Key) -> Iterable[Key]:
        return self._keys.get(subject, ())


class ObjectCache(Generic[T]):
    """One collection. It keeps at most `most_bytes` of values, and none above `most_of_one`; of
    other objects it knows all but the value. The values of a namespace take no more than is left
    free, so that there is room for those of another. Caches with the same `shared` share the bound:
    there is one for each namespace, and most namespaces are small.
    """

    def __init__(
        self, most_bytes: int, most_of_one: int, shared: SharedBytes | None = None
    ) -> None:
        self._most_bytes = most_bytes
        self._most_of_one = most_of_one
        self._shared = shared or SharedBytes()
        self._watched: _Layer[Seen[T]] = _Layer(self._shared.kept)
        self._ahead: _Layer[_Ahead[T]] = _Layer(self._shared.kept)
        self._answers = 0
        self._whole = _Whole()
        self.version = NEVER
        """What the watch has shown; NEVER: there was no list yet."""

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: Key) -> Seen[T] | None:
        """An object; None when there is none."""
        watched, ahead = self._watched.entries.get(key), self._ahead.entries.get(key)
        shown = max(self.version, watched.version if watched else NEVER)
        if ahead is None or ahead.version <= shown:
            return watched
        if ahead.seen is None and watched is not None and watched.subject != ahead.subject:
            return watched  # a list of its former subject lacked it
        return ahead.seen

    def of(self, subject: Key) -> list[Seen[T]]:
        """The objects of a subject, by name."""
        found = (self.get(key) for key in sorted(self._keys_of(subject)))
        return [seen for seen in found if seen is not None and seen.subject == subject]

    def count(self, subject: Key) -> int:
        """How many objects a subject has; one that has just gone may count."""
        return len(self._keys_of(subject))

    def _keys_of(self, subject: Key) -> set[Key]:
        return {*self._watched.keys_of(subject), *self._ahead.keys_of(subject)}

    def all_keys(self) -> list[Key]:
        """Of all objects that are known."""
        known = dict.fromkeys([*self._watched.entries, *self._ahead.entries])
        return [key for key in known if self.get(key)]

    def subjects(self) -> set[Key]:
        """Of all objects; of one that has just gone, too."""
        return {*self._watched.subjects(), *self._ahead.subjects()}

    def watched(self, key: Key) -> Seen[T] | None:
        """An object as the watch has shown it."""
        return self._watched.entries.get(key)

    @property
    def size(self) -> int:
        """Bytes of all values, and of those of the caches that share their bound with this one."""
        return self._shared.kept.total

    # --- list and watch ---------------------------------------------------------------------------

    @contextmanager
    def listing(self) -> Iterator[Listing[T]]:
        """What takes a list of the collection while it is read. After it nothing is held."""
        listing = Listing(self.watched, self._bounded, self._shared.listed)
        try:
            yield listing
        finally:
            listing.release()

    def begin_list(self) -> int:
        """What `replace` needs to know: how many answers there were before the list was asked for.
        It contains what they have shown.
        """
        return self._answers

    def replace(
        self,
        listed: Mapping[Key, Seen[T]],
        version: int,
        began: int,
        unreadable: Collection[str] = (),
    ) -> list[Change[T]]:
        """Take a whole list, also one of an older version: the API server may have been restored
        from a backup. Some objects may be of a later version: the watch begins at `version`, and
        repeats what led to them. Objects with an `unreadable` name stay, without their value.
        Returns what differs from what was known.
        """
        is_late = self._whole.number > began and self._whole.version > version
        lacked = [seen for key, seen in listed.items() if is_late and self.get(key) is None]
        self._drop(lambda ahead: ahead.number <= began or ahead.version <= version)
        for seen in lacked:
            self._note_gone(seen)
        gone = self._watched.entries.keys() - listed.keys()
        kept = {key for key in gone if key[1] in unreadable}
        removed = [change for key in gone - kept for change in self._remove(key)]
        for key in kept:
            self._watched.put(key, replace(self._watched.entries[key], value=None, size=0))
        changes = [change for seen in listed.values() for change in self._put(seen)]
        self.version = version
        if self._whole.number <= began:
            self._whole = _Whole()
        return changes + removed

    def apply(self, seen: Seen[T], *, deleted: bool = False) -> list[Change[T]]:
        """Take an event. Returns what it changes; nothing when it is repeated. Raises
        OutOfOrderError.
        """
        if seen.version <= self.version:
            self._check_repeated(seen, deleted=deleted)
            return []
        seen = self._with_value(seen)
        self.version = seen.version
        watched = self._watched.entries.get(seen.key)
        if watched is not None and watched.version > seen.version:
            return []  # the list has shown what followed
        self._note_gone(seen)
        ahead = self._ahead.entries.get(seen.key)
        if ahead is not None and ahead.version <= seen.version:
            self._ahead.pop(seen.key)
        return self._remove(seen.key) if deleted else self._put(seen)

    def bookmark(self, version: int) -> None:
        """Nothing else has happened up to this version. Raises OutOfOrderError, also where an
        answer has shown that something else has.
        """
        if version < self.version:
            raise OutOfOrderError(f"a bookmark of version {version} after {self.version}")
        for key, ahead in self._ahead.entries.items():
            if ahead.version <= version and self._lacks(key, ahead):
                name = "/".join(key)
                raise OutOfOrderError(f"a bookmark of version {version} without a change of {name}")
        self.version = version
        self._drop(lambda ahead: ahead.version <= version)

    def _lacks(self, key: Key, ahead: _Ahead[T]) -> bool:
        """Whether the watch still shows an older state than this answer, or an object that it
        lacked, or has never shown the object that it had.
        """
        watched = self._watched.entries.get(key)
        if watched is None:
            return ahead.seen is not None
        if ahead.seen is not None:
            return watched.version < ahead.seen.version
        return watched.subject == ahead.subject and watched.version <= ahead.version

    # --- answers to requests ----------------------------------------------------------------------

    def note(self, seen: Seen[T]) -> None:
        """Take an object from the answer to a request."""
        self._answers += 1
        watched = self._watched.entries.get(seen.key)
        if watched and watched.value is None and _is_same(watched, seen):
            self._put(seen)
            return
        self._note(seen.key, seen.subject, seen, seen.version)

    def note_list(self, subject: Key, listed: Iterable[Seen[T]], version: int) -> None:
        """Take a consistent list of the objects of one subject."""
        self._answers += 1
        found = {seen.key: seen for seen in listed}
        for key in {*found, *(seen.key for seen in self.of(subject))}:
            self._note(key, subject, found.get(key), version)

    def note_all(
        self, listed: Mapping[Key, Seen[T]], version: int, unreadable: Collection[str] = ()
    ) -> None:
        """Take a consistent list of the whole collection, which the watch may not have reached.
        Objects with an `unreadable` name stay as they are known.
        """
        self._answers += 1
        for key in {*listed, *self._watched.entries, *self._ahead.entries}:
            if key not in listed and key[1] in unreadable:
                continue
            seen, known, watched = listed.get(key), self.get(key), self._watched.entries.get(key)
            if seen and watched and watched.value is None and _is_same(watched, seen):
                self._put(seen)
            elif (holder := seen or watched or known) and not (
                seen and known and _is_same(known, seen)
            ):
                self._note(key, holder.subject, seen, version)
        if version > self._whole.version:
            self._whole = _Whole(version, self._answers, unreadable)

    def _note(self, key: Key, subject: Key, seen: Seen[T] | None, version: int) -> None:
        known = self._ahead.entries.get(key)
        shown = known.version if known else NEVER
        if version > max(self.version, self._whole.version, shown):
            self._ahead.pop(key)
            kept = self._bounded(seen, self._shared.kept) if seen else None
            self._ahead.put(key, _Ahead(kept, version, subject, self._answers))

    def _note_gone(self, seen: Seen[T]) -> None:
        """The watch, or its list, shows a state that is older than the list of all. What that list
        had is known already: it lacked the object.
        """
        known, whole = self._ahead.entries.get(seen.key), self._whole
        if seen.key[1] in whole.unreadable:
            return
        is_listed = known is not None and (known.seen is not None or known.version > whole.version)
        if seen.version <= whole.version and not is_listed:
            self._ahead.put(seen.key, _Ahead(None, whole.version, seen.subject, whole.number))

    # --- layers -----------------------------------------------------------------------------------

    def _put(self, seen: Seen[T]) -> list[Change[T]]:
        former = self._watched.pop(seen.key)
        self._watched.put(seen.key, self._bounded(seen, self._shared.kept))
        if former is not None and former.subject != seen.subject:
            left = Change(former.subject, former, None)
            return [left, Change(seen.subject, None, seen)]
        is_known = former is not None and _is_same(former, seen)
        return [] if is_known else [Change(seen.subject, former, seen)]

    def _remove(self, key: Key) -> list[Change[T]]:
        former = self._watched.pop(key)
        return [Change(former.subject, former, None)] if former else []

    def _with_value(self, seen: Seen[T]) -> Seen[T]:
        """An event that holds no value, with the one that an answer has shown already."""
        known = self.get(seen.key)
        return known if known and seen.value is None and _is_same(known, seen) else seen

    def _drop(self, is_past: Callable[[_Ahead[T]], bool]) -> None:
        for key in [key for key, ahead in self._ahead.entries.items() if is_past(ahead)]:
            self._ahead.pop(key)

    def _bounded(self, seen: Seen[T], held: HeldBytes) -> Seen[T]:
        left = self._most_bytes - held.total - held.by_namespace[seen.key[0]]
        if seen.size > min(self._most_of_one, left):
            return replace(seen, value=None, size=0)
        return seen

    def _check_repeated(self, seen: Seen[T], *, deleted: bool) -> None:
        known = self._watched.entries.get(seen.key)
        if (known is None and deleted) or (known is not None and known.version >= seen.version):
            return
        raise OutOfOrderError(f"an event of version {seen.version} after {self.version}")


class Listing(Generic[T]):
    """The objects of a list while it is read.

    A value that the cache would not keep is dropped as it comes, and so is one for which the lists
    of all that share its bound have no room. One that the cache has already takes none.
    """

    def __init__(
        self,
        watched: Callable[[Key], Seen[T] | None],
        bounded: Callable[[Seen[T], HeldBytes], Seen[T]],
        held: HeldBytes,
    ) -> None:
        self._watched, self._bounded, self._held = watched, bounded, held
        self._added: Counter[str] = Counter()
        """Bytes, by namespace."""
        self.objects: dict[Key, Seen[T]] = {}

    def add(self, seen: Seen[T]) -> None:
        """Take an object."""
        if seen is not self._watched(seen.key):
            seen = self._bounded(seen, self._held)
            self._held.add(seen.key[0], seen.size)
            self._added[seen.key[0]] += seen.size
        self.objects[seen.key] = seen

    def release(self) -> None:
        """What it has taken leaves its room to others."""
        for namespace, size in self._added.items():
            self._held.add(namespace, -size)


def _is_same(one: Seen[T], other: Seen[T]) -> bool:
    """Whether these are one object in one state."""
    return (one.uid, one.version) == (other.uid, other.version)
