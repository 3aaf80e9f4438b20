"""`spec.progressPattern`: finds the steps of a script in what its rank 0 writes.

Patterns are those of RE2, which matches in a time that is linear in the line. Python's own `re` can
take for ever, and the process that reads the lines must not stop.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from regroup_trainer.protocol.rank_messages import HIGHEST_STEP

FIELD = "progressPattern"
PATTERN_LIMIT = 256
"""Characters."""
LINE_BYTES = 4096
"""The beginning of a line that is looked at."""
GROUPS = ("step", "total", "loss")
NEEDS_RE2 = (
    f"{FIELD}: needs the package google-re2, which this Python does not have: pip install "
    "google-re2 (for Python 3.11 to 3.14), or leave the field out and call regroup_trainer.report"
)
_PROGRAM_BYTES = 1 << 18
"""Most memory of a compiled pattern."""
_MOST_INSTRUCTIONS = 1000
"""Of a compiled pattern. So many take up to 0.03 s for a line of LINE_BYTES; usual ones have 50."""
_DIGITS = 32
"""Characters of the longest number that is read."""
_ESCAPES_AND_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_BACK_REFERENCE = re.compile(r"\\[1-9]")
_WITHOUT_LOWER_BOUND = re.compile(r"\{,[0-9]*\}")
_WHOLE = re.compile(r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+")
_NOT_LINEAR = re.compile(r"\(\?(?!P<|:|[ims]+[:)])|[*+?}]\+")


class Found(NamedTuple):
    """What a line says."""

    step: int
    total: int
    """0: nothing."""
    loss: float | None
    """None: nothing."""


def has_re2() -> bool:
    """Whether this Python can match patterns."""
    return importlib.util.find_spec("re2") is not None


def find_problem(pattern: str) -> str | None:
    """What is wrong with a pattern, and what to write; None when it can be used."""
    if len(pattern) > PATTERN_LIMIT:
        return f"has {len(pattern)} characters: at most {PATTERN_LIMIT} are possible"
    if any("\ud800" <= character <= "\udfff" for character in pattern):
        return "holds half of a character (a lone surrogate): write the whole character"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    bare = _ESCAPES_AND_CLASSES.sub(_without_content, pattern)
    if (found := _NOT_LINEAR.search(bare) or _BACK_REFERENCE.search(bare)) is not None:
        return (
            f"{found[0]!r} is not possible: patterns are those of RE2, without look-around, "
            "back-references and possessive repetition"
        )
    if (found := _WITHOUT_LOWER_BOUND.search(bare)) is not None:
        return f"{found[0]!r} is no repetition in RE2: write {{0{found[0][1:]}"
    if unknown := sorted(groups.keys() - set(GROUPS)):
        return f"has a group {unknown[0]!r}: known are {', '.join(GROUPS)}"
    if "step" not in groups:
        return r"has no group 'step': write (?P<step>\d+) where the step stands"
    return _problem_of_re2(pattern, groups) if has_re2() else None


def _without_content(token: re.Match[str]) -> str:
    """Back-references stay, since they are looked for."""
    return token[0] if _BACK_REFERENCE.fullmatch(token[0]) else "."


def _problem_of_re2(pattern: str, groups: Mapping[str, int]) -> str | None:
    """What is wrong with a pattern in which Python finds these groups."""
    import re2

    try:
        program = _compile(pattern)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return f"is no regular expression of RE2: {text}"
    if dict(program.groupindex) != dict(groups):
        return "means something else in RE2 than in Python: write [ in a class as \\["
    if program.programsize > _MOST_INSTRUCTIONS:
        return (
            f"would take too long for each line: it has {program.programsize} instructions, and "
            f"{_MOST_INSTRUCTIONS} are possible: repeat less, such as .* for .{{1000}}"
        )
    return None


def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.log_errors = False
    return re2.compile(pattern, options)


class ProgressPattern:
    """A pattern that `find_problem` has nothing against. Raises ImportError without RE2."""

    def __init__(self, pattern: str) -> None:
        self._program = _compile(pattern)

    def find(self, line: bytes) -> Found | None:
        """What a line says; None where it says no step, or one that cannot be read."""
        match = self._program.search(line[:LINE_BYTES].decode(errors="replace"))
        if match is None:
            return None
        texts = match.groupdict()
        step = _whole(texts.get("step"))
        return (
            None
            if step is None
            else Found(step, _whole(texts.get("total")) or 0, _number(texts.get("loss")))
        )


def _whole(text: str | None) -> int | None:
    """A step as people write it: 12, 12,000 or 12_000. A comma may follow it."""
    written = (text or "").removesuffix(",")
    if len(written) > _DIGITS or not _WHOLE.fullmatch(written):
        return None
    step = int(written.replace(",", "").replace("_", ""))
    return step if step <= HIGHEST_STEP else None


def _number(text: str | None) -> float | None:
    """A loss as Python writes it; also nan and inf."""
    if not text or not text.isascii() or len(text) > _DIGITS:
        return None
    try:
        return float(text)
    except ValueError:
        return None
