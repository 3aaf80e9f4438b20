"""What Regroup itself writes in the process of a rank, beside what the user's program writes there.

The logger is none of `logging.getLogger`: a program configures and disables those. Torch-free.
"""

from __future__ import annotations

import json
import logging
import re
import sys

from regroup_trainer.system.log_lines import LineFormatter

NAME = "regroup_trainer.rank"
_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S+/\S+ \d+\.\d+: ", re.MULTILINE
)
_OBJECT = re.compile(
    rf'^\{{"time": "[^"]+", "level": "[A-Z]+", "logger": "{NAME}".*$', re.MULTILINE
)


class _ToStderr(logging.Handler):
    """Writes to what is standard error now: a program may put another stream there."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


log = logging.Logger(NAME, logging.INFO)
log.addHandler(_ToStderr())


def begin(form: str | None) -> LineFormatter:
    """Have lines name job and generation from now on, as JSON where `form` is `json`. Set `subject`
    of the result. Where nobody calls this, a line is its message alone.
    """
    lines = LineFormatter(as_json=form == "json", with_logger=False)
    log.handlers[0].setFormatter(lines)
    return lines


def without_stamps(text: str) -> str:
    """What a rank wrote, in which each line of this log is its message alone."""
    return _OBJECT.sub(lambda line: _message(line[0]), _STAMP.sub("", text))


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, RecursionError):  # a program wrote something like it
        return line
