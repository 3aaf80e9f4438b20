"""Reads the status that this or an earlier release of the operator stored. Pure.

A part that cannot be read is left out and named; all other parts are kept. What a part that is left
out becomes:

- `coordinatorTerm` and `nextIncarnation` continue at the seconds since 1970. Counting never comes
  that far, so that no name of a pod and no term is used twice.
- An unreadable entry of a list or map is left out alone, an unreadable number becomes its default.
- An unreadable time counts as not yet set: a deadline runs anew, a pause after failures is over, an
  end gets the time at which it is read. `api.timestamps` says what a time is.
- A counter above 2,000,000,000 counts as unreadable.
- `images` are then those of the job's pods, `protocolVersion` the one that its coordinator reports
  (`planner`), so that a running job stays at its release. Without pods it starts with those of
  today. A coordinator that has to be replaced before it could report gets a successor that is
  addressed in today's protocol.
- `tokenKey` is then that of the key in use. After a rotation it is the wrong one: the coordinator
  of a running job refuses the operator's requests until the name is written back.
- `restarts` are then restored from the account of the running coordinator (`merge_ledgers`).
- `handledPods`: all pods that have ended by now count as handled (`losses`), so that no failure is
  counted twice.
"""

from __future__ import annotations

import copy
from collections import Counter
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from regroup_operator.api.status import RENAMED, RENAMED_IN_RECOVERIES, TrainingJobStatus
from regroup_trainer.protocol.version_one import RESTORED_FROM

_NEVER_REUSED = ("coordinatorTerm", "nextIncarnation")
_MOST_COUNTED = 2_000_000_000
"""Of a counter that the operator raises. The seconds since 1970 reach it in 2033."""
_ENTRIES_NAMED = 8
_PATH_LIMIT = 100
"""Characters. The keys of a map are as long as somebody made them."""


def read_status(raw: Any, now: datetime) -> tuple[TrainingJobStatus, tuple[str, ...]]:
    """The status, and the paths of what could not be read, such as `recoveries.0.time`. Where more
    than eight entries of a field could not, `recoveries.*` stands for all of them.
    """
    document = _renamed(copy.deepcopy(raw)) if isinstance(raw, dict) else {}
    unreadable: list[str] = [] if isinstance(raw, dict) or raw is None else ["status"]
    for name in _used_up(document):
        document[name] = None
    while True:
        try:
            status = TrainingJobStatus.model_validate(document)
        except ValidationError as error:
            paths = [entry["loc"] for entry in error.errors(include_url=False)]
            unreadable += (".".join(map(str, path)) for path in paths)
            _remove_all(document, paths)
            fields = {path[0] for path in paths}
            fresh = {name: int(now.timestamp()) for name in _NEVER_REUSED if name in fields}
            document |= fresh
        else:
            return status, _named(unreadable)


def _remove_all(document: dict[str, Any], paths: list[tuple[int | str, ...]]) -> None:
    """Remove one part of each entry that has unreadable ones. Removing an entry of a list moves
    those behind it, so the last goes first. Another part of an entry waits for the next reading.
    """
    of_entries = {path[:2]: path for path in paths}
    for path in sorted(of_entries.values(), key=_place, reverse=True):
        _remove(document, path)


def _place(path: tuple[int | str, ...]) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


def _named(paths: list[str]) -> tuple[str, ...]:
    """Each path once and not too long; many entries of one field as `field.*`."""
    names = dict.fromkeys(paths)
    entries = Counter(path.partition(".")[0] for path in names)
    return tuple(
        dict.fromkeys(
            f"{field}.*" if entries[field] > _ENTRIES_NAMED else path[:_PATH_LIMIT]
            for path in names
            for field in [path.partition(".")[0]]
        )
    )


def _used_up(document: dict[str, Any]) -> list[str]:
    """Counters that no counting has brought so far: soon the schema would refuse the next value,
    and with it the whole status.
    """
    return [
        name
        for name in (*_NEVER_REUSED, "podFailures")
        if isinstance(count := document.get(name), int) and count > _MOST_COUNTED
    ]


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    """With the names of today where only those of release 0.1 are present."""
    _rename(document, RENAMED)
    recoveries = document.get("recoveries")
    for recovery in recoveries if isinstance(recoveries, list) else ():
        if isinstance(recovery, dict):
            rung = recovery.get("rung")
            if isinstance(rung, str):
                recovery["rung"] = RESTORED_FROM.get(rung, rung)
            _rename(recovery, RENAMED_IN_RECOVERIES)
    return document


def _rename(document: dict[str, Any], renamed: dict[str, str]) -> None:
    for former, name in renamed.items():
        if former in document:
            document.setdefault(name, document.pop(former))


def _remove(document: dict[str, Any], path: tuple[int | str, ...]) -> None:
    """Remove what is at `path`; where it is not there, the nearest part that contains it."""
    holder: Any = document
    found: tuple[Any, int | str] = (document, path[0])
    for part in path:
        holds = isinstance(holder, dict) and part in holder
        if not holds and not (isinstance(holder, list) and isinstance(part, int)):
            break
        found = (holder, part)
        holder = holder[part]
    del found[0][found[1]]
