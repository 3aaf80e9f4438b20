"""What the lines of a log look like, and how many of them others can cause. Torch-free."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

PERIOD_SECONDS = 10.0
MOST_RECORDS = 5
"""Of one kind, in a period."""
_MOST_KINDS = 100


class Subject(NamedTuple):
    """What a line is about. What is not known is empty."""

    namespace: str = ""
    trainingjob: str = ""
    generation: str = ""
    rank: str = ""
    """In JSON alone: before text, its agent puts the rank."""


NO_SUBJECT = Subject()


class LineFormatter(logging.Formatter):
    """Puts job and generation into each line."""

    def __init__(self, *, as_json: bool, with_logger: bool) -> None:
        """`with_logger`: lines of text have the name of the logger instead of the job, which such
        a program names itself.
        """
        super().__init__("%(asctime)s %(levelname)s %(about)s%(message)s")
        self._as_json, self._with_logger = as_json, with_logger
        self.subject: Callable[[], Subject] = Subject
        """What a line that is written now is about."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON, or of text with the traceback below it."""
        about = self.subject()
        if self._as_json:
            return self._json(record, about)
        job = f"{about.namespace}/{about.trainingjob}" if about.trainingjob else ""
        words = (record.name if self._with_logger else job, about.generation)
        shown = " ".join(filter(None, words))
        record.about = f"{shown}: " if shown else ""
        return super().format(record)

    def _json(self, record: logging.LogRecord, about: Subject) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name}
        line |= {name: value for name, value in about._asdict().items() if value}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(
    form: str | None, level: int | str = logging.INFO, *, with_logger: bool = False
) -> LineFormatter:
    """Have this process log to standard error, as JSON where `form` is `json`. Set `subject` of the
    result.
    """
    lines = LineFormatter(as_json=form == "json", with_logger=with_logger)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines)
    logging.basicConfig(level=level, handlers=[handler])
    return lines


_OF_RANKS = "regroup_trainer.rank"
_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S+/\S+ \d+\.\d+: ", re.MULTILINE
)
_OBJECT = re.compile(
    rf'^\{{"time": "[^"]+", "level": "[A-Z]+", "logger": "{_OF_RANKS}".*$', re.MULTILINE
)


class _ToStderr(logging.Handler):
    """Writes to what is standard error now: a program may put another stream there."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


rank_log = logging.Logger(_OF_RANKS, logging.INFO)
"""What Regroup itself writes in the process of a rank, beside what the user's program writes there.
It is none of `logging.getLogger`: a program configures and disables those.
"""
rank_log.addHandler(_ToStderr())


def begin_rank_log(form: str | None) -> LineFormatter:
    """Have lines of `rank_log` name job and generation, as JSON where `form` is `json`. Set
    `subject` of the result. Where nobody calls this, a line is its message alone.
    """
    lines = LineFormatter(as_json=form == "json", with_logger=False)
    rank_log.handlers[0].setFormatter(lines)
    return lines


def without_stamps(text: str) -> str:
    """What a rank wrote, in which each line of `rank_log` is its message alone."""
    return _OBJECT.sub(lambda line: _message(line[0]), _STAMP.sub("", text))


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, RecursionError):  # a program wrote something like it
        return line


class LogLimit(logging.Filter):
    """Lets five records of one kind pass in ten seconds. The next one says how many it left out.

    Records are of one kind when they have the same text before their values are put in. Use it as a
    filter of a logger.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; it may get a sentence about others."""
        name = str(record.msg)
        if name not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            name = ""
        kind = self._kinds.setdefault(name, _Kind(record.created))
        if not 0 <= record.created - kind.since < PERIOD_SECONDS:  # the clock may go back
            if kind.left_out:
                record.msg = f"{record.msg} (and {kind.left_out} more of this kind, left out)"
            self._kinds[name] = kind = _Kind(record.created)
        kind.count += 1
        kind.left_out += kind.count > MOST_RECORDS
        return kind.count <= MOST_RECORDS


class _Kind:
    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        self.left_out = 0
