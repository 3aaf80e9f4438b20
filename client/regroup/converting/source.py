"""A document that is converted: each of its values is taken over, or reported. Pure.

Whoever converts takes values by their path. What nobody took is reported at the end, by the reason
in the table of the kind. So a field that the code forgets is reported too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regroup_trainer.protocol.message import quote, shorten

Step = Any
"""A key or an index. Keys of YAML need not be text."""
Place = tuple[Step, ...]
"""The way to a value of a document."""


class Refusal(Exception):
    """A document cannot be converted. The message begins with the field."""

    def __init__(self, place: Place, problem: str, document: int = 0) -> None:
        super().__init__(f"{shown(place)}: {problem}")
        self.place = place
        self.problem = problem
        self.document = document


@dataclass(frozen=True)
class Row:
    """A line of the table of a kind: a field, and what becomes of it."""

    field: str
    """Names with dots between them; `*` stands for any name. It includes all below it."""
    target: str
    """Field of the TrainingJob; empty: none."""
    text: str = ""
    """What differs. Without a target: why there is none."""


@dataclass(frozen=True)
class Note:
    """What a user should read about a value of the source."""

    place: Place
    text: str
    document: int = 0
    """Its number among the documents that are converted together."""
    line: int | None = None
    """Of a text that is no YAML."""
    is_remark: bool = False
    """Whether it is about a part of the value: the rest is taken over."""


class Source:
    """One document, and which of its values were taken."""

    def __init__(
        self, value: Mapping[Any, Any], kind: str, document: int = 0, root: Place = ()
    ) -> None:
        self.value = value
        self.kind = kind
        self.document = document
        self.root = root
        """Where it lies in its document, such as in the entry of a list."""
        self._taken: set[Place] = set()
        self._reasons: dict[Place, str] = {}
        self._remarks: list[Note] = []

    def get(self, *place: Step) -> Any:
        """The value there, which does not count as taken; None where there is none."""
        return value_at(self.value, place)

    def take(self, *place: Step) -> Any:
        """The value there with all below it, as taken; None where there is none."""
        value = self.get(*place)
        self._taken.update(inner for inner, _ in leaves(value, place))
        return value

    def leave(self, place: Place, why: str) -> None:
        """Report a value and all below it, also when it was taken."""
        self._taken.difference_update(inner for inner, _ in leaves(self.get(*place), place))
        self._reasons[place] = why

    def why_left(self, place: Place) -> str:
        """Why `leave` was called for the place or for what it lies in; empty: it was not."""
        lengths = range(len(place), 0, -1)
        return next((self._reasons[p] for n in lengths if (p := place[:n]) in self._reasons), "")

    def remark(self, place: Place, text: str) -> None:
        """Report what became of a part of a value, such as a word of a command."""
        self._remarks.append(replace(self._note(place, text), is_remark=True))

    def refuse(self, place: Place, problem: str) -> Refusal:
        """An error about a value of this document."""
        return Refusal((*self.root, *place), problem, self.document)

    def text(self, *place: Step) -> str | None:
        """The text there. Raises Refusal for another value."""
        value: str | None = self._of_type(place, str, "text")
        return value

    def flag(self, *place: Step) -> bool | None:
        """True or false. Raises Refusal for another value."""
        value: bool | None = self._of_type(place, bool, "true or false")
        return value

    def number(self, *place: Step) -> int | None:
        """The whole number there. Raises Refusal for another value."""
        value: int | None = self._of_type(place, int, "a whole number")
        return value

    def mapping(self, *place: Step) -> Mapping[Any, Any]:
        """The object there, which does not count as taken; empty where there is none. Raises
        Refusal for another value.
        """
        value = self.get(*place)
        if value is not None and not isinstance(value, Mapping):
            raise self.refuse(place, f"must be an object, got {quote(value)}")
        return value or {}

    def sequence(self, *place: Step) -> Sequence[Any]:
        """The list there, which does not count as taken; empty where there is none. Raises
        Refusal for another value.
        """
        value = self.get(*place)
        if value is not None and not isinstance(value, list):
            raise self.refuse(place, f"must be a list, got {quote(value)}")
        return value or ()

    def left_out(self, rows: Sequence[Row]) -> list[Note]:
        """What was not taken, and all remarks. Values of one object with one reason are one
        note.
        """
        return [*self._report(self.value, (), rows)[1], *self._remarks]

    def _of_type(self, place: Place, wanted: type, words: str) -> Any:
        value = self.take(*place)
        fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if value is None or fits:
            return value
        raise self.refuse(place, f"must be {words}, got {quote(value)}")

    def _report(
        self, value: Any, place: Place, rows: Sequence[Row]
    ) -> tuple[set[str | None], list[Note]]:
        """The reasons of all below, with None for what was taken, and the notes."""
        if is_leaf(value):
            if place in self._taken:
                return {None}, []
            why = self._reason(place, rows)
            return {why}, [self._note(place, f"{quote(value)} is left out: {why}")]
        reasons: set[str | None] = set()
        notes: list[Note] = []
        for step, inner in parts(value):
            found, inner_notes = self._report(inner, (*place, step), rows)
            reasons |= found
            notes += inner_notes
        if len(reasons) == 1 and len(notes) > 1 and place:
            notes = [self._note(place, f"{quote(value)} is left out: {next(iter(reasons))}")]
        return reasons, notes

    def _note(self, place: Place, text: str) -> Note:
        return Note((*self.root, *place), text, self.document)

    def _reason(self, place: Place, rows: Sequence[Row]) -> str:
        if why := self.why_left(place):
            return why
        row = find(rows, place)
        if row is None:
            return f"a {self.kind} has no such field that is known here"
        return row.text if not row.target else "it has no effect here"


def find(rows: Iterable[Row], place: Place) -> Row | None:
    """The row that is about a value: the one with the longest field. Indexes do not count."""
    names = [step for step in place if not isinstance(step, int)]
    fitting = [row for row in rows if _fits(row.field.split("."), names)]
    return max(fitting, key=_precision, default=None)


def _precision(row: Row) -> tuple[int, int]:
    return row.field.count("."), -row.field.count("*")


def _fits(field: list[str], names: list[Step]) -> bool:
    return len(field) <= len(names) and all(
        wanted in ("*", name) for wanted, name in zip(field, names, strict=False)
    )


def is_leaf(value: Any) -> bool:
    """Whether a value has no values in it. An empty object or list is one value."""
    return not (isinstance(value, Mapping | list) and any(True for _ in parts(value)))


def parts(value: Mapping[Any, Any] | Sequence[Any]) -> Iterator[tuple[Step, Any]]:
    """Steps and values of an object or a list. A field that is null counts as absent, as in
    Kubernetes.
    """
    if isinstance(value, Mapping):
        yield from ((key, inner) for key, inner in value.items() if inner is not None)
    else:
        yield from enumerate(value)


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value that has no values in it, with its place."""
    if is_leaf(value):
        yield place, value
        return
    for step, inner in parts(value):
        yield from leaves(inner, (*place, step))


def value_at(value: Any, place: Place) -> Any:
    """The value at a place; None where there is none."""
    for step in place:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def left_out(subject: str, why: str) -> str:
    """A sentence about a part of a value. A long subject is shortened."""
    return f"{shorten(subject)} is left out: {why}"


def shown(place: Place) -> str:
    """A place as in messages: `spec.containers[0].name`."""
    text = ""
    for step in place:
        name = shorten(step) if isinstance(step, str) else quote(step)
        text += f"[{step}]" if isinstance(step, int) else f".{name}"
    return text.removeprefix(".") or "document"
