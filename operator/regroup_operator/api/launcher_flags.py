"""Reads the flags of a launcher by a table: each is applied, or refused by name. Pure.

`torchrun_flags` and `accelerate_flags` hold the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from regroup_trainer.protocol.accelerate_settings import AccelerateLaunch
from regroup_trainer.protocol.message import listed, shorten

MOST_RESTARTS = 999_999_999
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
"""What begins with a dash, and is a value for argparse."""


class FlagError(ValueError):
    """A flag is not supported. The message names it and what to do."""


@dataclass(frozen=True)
class LaunchFlags:
    """What a launcher's command line asks for, beside the script."""

    ranks: int | Literal["auto"] | None = None
    """Ranks of a worker; None: the command does not say."""
    nodes: tuple[int, int] | None = None
    """Fewest and most workers."""
    processes: int | None = None
    """Ranks of all workers together."""
    machines: int | None = None
    """Workers over which `processes` are spread."""
    max_restarts: int | None = None
    role: str = "default"
    stock: tuple[str, ...] = ()
    """Flags that only stock torchrun supports, as they were written."""
    has_output: bool = False
    """Whether torchrun itself is to handle what ranks write."""
    accelerate: AccelerateLaunch | None = None
    """A command of accelerate with a config file, which only a rank can read."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of a command of accelerate without a config file."""


@dataclass(frozen=True)
class Flag:
    """What a launcher's flag means here."""

    kind: str
    """"refused", or what the launcher's reader makes of it."""
    takes_value: bool = True
    values: tuple[str, ...] = ()
    """The values that are supported; empty: all."""
    form: re.Pattern[str] | None = None
    """What each value must look like."""
    instead: str = ""
    """What to do instead."""


class FoundFlag(NamedTuple):
    """A flag of a command line."""

    name: str
    """Without dashes in front of it, and with dashes inside."""
    value: str
    written: str
    """As one word that the launcher understands."""


@dataclass(frozen=True)
class FlagTable:
    """The flags of a launcher."""

    command: tuple[str, ...]
    """The words that start it."""
    flags: Mapping[str, Flag]
    """By name, with dashes inside."""
    short: Mapping[str, str]
    """Letter -> name."""
    abbreviates: bool
    """Whether the beginning of a name will do."""

    def read(self, words: Sequence[str]) -> tuple[list[FoundFlag], list[str]]:
        """Read what follows the launcher; returns the flags, and the script with its arguments.

        Raises FlagError, which names a flag that is not supported.
        """
        found, refused, rest = self.sift(words)
        if refused:
            kept = [flag.written for flag in found if flag.written not in refused]
            reasons = "; ".join(sorted(set(refused.values())))
            raise FlagError(
                f"{listed([*refused])}: {reasons}: write [{listed([*self.command, *kept, *rest])}]"
            )
        return found, rest

    def sift(self, words: Sequence[str]) -> tuple[list[FoundFlag], dict[str, str], list[str]]:
        """What follows the launcher: all flags, why some are not supported (by the flag as it was
        written), and the script with its arguments.

        Raises FlagError for a flag that the launcher does not have.
        """
        rest: list[str] = list(words)
        found: list[FoundFlag] = []
        while rest and rest[0].startswith("-"):
            if rest[0] == "--":  # argparse: no flags follow
                rest.pop(0)
                break
            found += self._take(rest)
        refused = {flag.written: why for flag in found if (why := self._refusal(flag))}
        return found, refused, rest

    def last(self, found: Sequence[FoundFlag]) -> dict[str, FoundFlag]:
        """Kind -> the last flag of it, which counts."""
        return {self.flags[flag.name].kind: flag for flag in found}

    def common(self, found: Sequence[FoundFlag]) -> LaunchFlags:
        """What the flags say that all launchers have. Raises FlagError."""
        last, stock = self.last(found), ("stock", "output")
        restarts, role = last.get("restarts"), last.get("role")
        return LaunchFlags(
            max_restarts=read_number(restarts, 0, MOST_RESTARTS) if restarts else None,
            role=role.value if role else LaunchFlags.role,
            stock=tuple(f.written for f in found if self.flags[f.name].kind in stock),
            has_output="output" in last,
        )

    def _take(self, rest: list[str]) -> Iterator[FoundFlag]:
        """Take the flags of a word, and its value if it has one, from the beginning of `rest`."""
        word = rest.pop(0)
        if not word.startswith("--"):
            yield from self._take_letters(word, rest)
            return
        given, equals, value = word.partition("=")
        name = self._name(given)
        if not self.flags[name].takes_value:
            if equals:
                raise FlagError(f"{shorten(word)}: {given} takes no value: write {given} alone")
            yield FoundFlag(name, "", word)
            return
        value = value if equals else _take_value(given, f"{given}=VALUE", rest)
        yield FoundFlag(name, value, f"{given}={value}")

    def _take_letters(self, word: str, rest: list[str]) -> Iterator[FoundFlag]:
        """Flags of one letter may share a word, such as -qm. A value may follow the last: -t3."""
        letters = word[1:]
        self._name(word[:2])  # also that there is a letter
        for place, letter in enumerate(letters, start=1):
            given = f"-{letter}"
            if letter not in self.short:
                raise FlagError(
                    f"{shorten(word)}: {self.command[0]} has no such flag as {shorten(given)}: "
                    "put a blank in front of what is no flag"
                )
            name, value = self.short[letter], letters[place:]
            if self.flags[name].takes_value:
                value = value.removeprefix("=") or _take_value(given, f"{given}VALUE", rest)
                yield FoundFlag(name, value, f"{given}{value}")
                return
            yield FoundFlag(name, "", given)

    def _name(self, given: str) -> str:
        unknown = f"{shorten(given)}: {self.command[0]} has no such flag"
        if not given.startswith("--"):
            if given[1:2] in self.short:
                return self.short[given[1]]
            raise FlagError(unknown)
        name = given[2:].replace("_", "-")
        if name in self.flags:
            return name
        names = [known for known in self.flags if name and known.startswith(name)]
        if len(names) == 1 and self.abbreviates:
            return names[0]
        known = f": it may be {' or '.join('--' + known for known in names)}" if names else ""
        raise FlagError(f"{unknown}{known}")

    def _refusal(self, found: FoundFlag) -> str:
        """Why a flag with this value is not supported; empty when it is."""
        flag = self.flags[found.name]
        allowed = (
            flag.kind != "refused"
            and (not flag.values or found.value in flag.values)
            and (flag.form is None or flag.form.fullmatch(found.value) is not None)
        )
        return "" if allowed else flag.instead


def _take_value(given: str, how: str, rest: list[str]) -> str:
    """The next word as the value of a flag. Raises FlagError where argparse sees a flag there."""
    if rest and (not rest[0].startswith("-") or _is_value(rest[0])):
        return rest.pop(0)
    why = f", since {shorten(rest[0])} looks like a flag" if rest else ""
    raise FlagError(f"{given}: its value is missing{why}: write {how}")


def _is_value(word: str) -> bool:
    return word == "-" or _NEGATIVE_NUMBER.fullmatch(word) is not None


def read_number(found: FoundFlag, fewest: int, most: int, otherwise: str = "") -> int:
    """The value of a flag as a number. Raises FlagError when it is none between the bounds."""
    text = found.value
    if text.isascii() and text.isdigit() and len(text) < 10 and fewest <= int(text) <= most:
        return int(text)
    raise FlagError(f"{shorten(found.written)}: give a number from {fewest} to {most}{otherwise}")
