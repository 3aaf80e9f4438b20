"""The command line of torchrun, as a container's command: each flag is obeyed, or refused by name.
Pure.

Flags that say what to start and how often count as the fields of the spec that say the same. Flags
that say where agents meet are refused: the job brings its own rendezvous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["ranks", "nodes", "restarts", "role", "module", "same", "stock", "output", "refused"]


class FlagError(ValueError):
    """A flag cannot be obeyed. The message names it and what to do."""


@dataclass(frozen=True)
class LaunchFlags:
    """What a launcher's command line asks for, beside the script."""

    ranks: int | Literal["auto"] | None = None
    """Ranks of a worker; None: the command does not say."""
    nodes: tuple[int, int] | None = None
    """Fewest and most workers."""
    max_restarts: int | None = None
    role: str = "default"
    stock: tuple[str, ...] = ()
    """Flags that only stock torchrun obeys, as they were written."""
    has_output: bool = False
    """Whether torchrun itself is to handle what ranks write."""


@dataclass(frozen=True)
class _Flag:
    kind: Kind
    takes_value: bool = True
    values: tuple[str, ...] = ()
    """The values that can be obeyed; empty: all."""
    instead: str = ""
    """What to do instead."""


_MEETING = "the job brings its own rendezvous"
_FLAGS: dict[str, _Flag] = {
    "nproc-per-node": _Flag("ranks"),
    "nnodes": _Flag("nodes"),
    "standalone": _Flag("nodes", takes_value=False),
    "max-restarts": _Flag("restarts"),
    "role": _Flag("role"),
    "module": _Flag("module", takes_value=False),
    "run-path": _Flag("same", takes_value=False),
    "rdzv-backend": _Flag("same", values=("c10d",), instead=_MEETING),
    "start-method": _Flag("same", values=("spawn",), instead="ranks are processes of their own"),
    "monitor-interval": _Flag("stock"),
    "log-dir": _Flag("stock"),
    "redirects": _Flag("output"),
    "tee": _Flag("output"),
    "log-line-prefix-template": _Flag("output"),
    "local-ranks-filter": _Flag("stock"),
    "duplicate-stdout-filters": _Flag("output"),
    "duplicate-stderr-filters": _Flag("output"),
    "logs-specs": _Flag("output"),
    "event-log-handler": _Flag("stock"),
    "numa-binding": _Flag("stock"),
    "signals-to-handle": _Flag("stock"),
    "shutdown-timeout": _Flag("stock"),
    "print-completion": _Flag("stock", takes_value=False),
    "virtual-local-rank": _Flag("stock", takes_value=False),
    "no-python": _Flag("refused", takes_value=False, instead="give a Python script"),
    "help": _Flag("refused", takes_value=False, instead="it starts nothing"),
    "rdzv-id": _Flag("refused", instead=_MEETING),
    "rdzv-endpoint": _Flag("refused", instead=_MEETING),
    "rdzv-conf": _Flag("refused", instead=_MEETING),
    "node-rank": _Flag("refused", instead=_MEETING),
    "master-addr": _Flag("refused", instead=_MEETING),
    "master-port": _Flag("refused", instead=_MEETING),
    "local-addr": _Flag("refused", instead=_MEETING),
}
"""torchrun's flags (torch 2.15), without the dashes."""
_SHORT = {"m": "module", "r": "redirects", "t": "tee", "h": "help"}


def read_torchrun(words: Sequence[str]) -> tuple[LaunchFlags, list[str]]:
    """Read what follows `torchrun`; returns the flags, and the script with its arguments.

    Raises FlagError, which names a flag that cannot be obeyed.
    """
    rest: list[str] = list(words)
    found = []
    while rest and rest[0].startswith("-"):
        found.append(_take(rest))
    refused = {written: why for name, value, written in found if (why := _refusal(name, value))}
    if refused:
        kept = [written for _, _, written in found if written not in refused]
        reasons = "; ".join(sorted(set(refused.values())))
        raise FlagError(
            f"{', '.join(refused)}: {reasons}: write [{', '.join(['torchrun', *kept, *rest])}]"
        )
    is_module = any(name == "module" for name, _, _ in found)
    return _flags(found), [*(["-m"] if is_module else []), *rest]


def _take(rest: list[str]) -> tuple[str, str, str]:
    """Take a flag, and its value if it has one, from the beginning of `rest`."""
    word = rest.pop(0)
    given, equals, value = word.partition("=")
    name = _name(given)
    flag = _FLAGS[name]
    if not flag.takes_value:
        if equals:
            raise FlagError(f"{word}: {given} takes no value: write {given} alone")
        return name, "", word
    if len(given) > 2 and not given.startswith("--"):  # -t3
        given, value, equals = given[:2], given[2:] + equals + value, "="
    if not equals:
        if not rest:
            raise FlagError(f"{word}: its value is missing")
        value = rest.pop(0)
    return name, value, f"{given}={value}" if given.startswith("--") else f"{given}{value}"


def _name(given: str) -> str:
    if not given.startswith("--"):
        if given[1:2] in _SHORT:
            return _SHORT[given[1]]
        raise FlagError(f"{given}: torchrun has no such flag")
    name = given[2:].replace("_", "-")
    names = [name] if name in _FLAGS else [known for known in _FLAGS if known.startswith(name)]
    if len(names) != 1 or not name:
        known = f": it may be {' or '.join('--' + known for known in names)}" if names else ""
        raise FlagError(f"{given}: torchrun has no such flag{known}")
    return names[0]


def _refusal(name: str, value: str) -> str:
    """Why a flag with this value cannot be obeyed; empty when it can."""
    flag = _FLAGS[name]
    allowed = flag.kind != "refused" and (not flag.values or value in flag.values)
    return "" if allowed else flag.instead


def _flags(found: Sequence[tuple[str, str, str]]) -> LaunchFlags:
    last = {_FLAGS[name].kind: (value, written) for name, value, written in found}
    return LaunchFlags(
        ranks=_ranks(*last["ranks"]) if "ranks" in last else None,
        nodes=_nodes(*last["nodes"]) if "nodes" in last else None,
        max_restarts=_restarts(*last["restarts"]) if "restarts" in last else None,
        role=last["role"][0] if "role" in last else LaunchFlags.role,
        stock=tuple(w for name, _, w in found if _FLAGS[name].kind in ("stock", "output")),
        has_output="output" in last,
    )


def _ranks(value: str, written: str) -> int | Literal["auto"]:
    if value in ("gpu", "auto"):
        return "auto"
    if value.isascii() and value.isdigit() and 1 <= int(value) <= 1024:
        return int(value)
    raise FlagError(f"{written}: give a number from 1 to 1024, or auto: one rank for each GPU")


def _nodes(value: str, written: str) -> tuple[int, int]:
    fewest, _, most = (value or "1").partition(":")
    numbers = (fewest, most or fewest)
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise FlagError(f"{written}: give a number of workers, or the fewest and the most: 2:4")
    return int(numbers[0]), int(numbers[1])


def _restarts(value: str, written: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise FlagError(f"{written}: give a number")
    return int(value)
