"""Times, sizes and counts in the words of `kubectl`. Pure."""

from __future__ import annotations

from datetime import datetime

MINUTE, HOUR, DAY = 60, 3600, 86400
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NOTHING = "-"
"""What a table shows where nothing is known."""


def duration(seconds: float | None) -> str:
    """As kubectl prints an age: 45s, 5m10s, 2h5m, 3d4h."""
    if seconds is None:
        return NOTHING
    whole = max(0, int(seconds))
    if whole < 2 * MINUTE:
        return f"{whole}s"
    if whole < 3 * HOUR:
        return _two(whole, MINUTE, "m", 1, "s", both=whole < 10 * MINUTE)
    if whole < 2 * DAY:
        return _two(whole, HOUR, "h", MINUTE, "m", both=whole < 8 * HOUR)
    return _two(whole, DAY, "d", HOUR, "h", both=whole < 8 * DAY)


def _two(whole: int, large: int, name: str, small: int, small_name: str, *, both: bool) -> str:
    """The large unit, and the small one where it still matters."""
    rest = whole % large // small
    return f"{whole // large}{name}" + (f"{rest}{small_name}" if both and rest else "")


def short_seconds(seconds: float | None) -> str:
    """A time that may be a fraction of a second: 0.16s, 2.3s, 5m10s."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < MINUTE else duration(seconds)


def ago(time: datetime | None, now: datetime) -> str:
    """How long ago."""
    return f"{duration((now - time).total_seconds())} ago" if time else "at an unknown time"


def age(time: datetime | None, now: datetime) -> str:
    """Seconds since a time, as a duration."""
    return duration((now - time).total_seconds() if time else None)


def clock(time: datetime | None) -> str:
    """Date and time of day, of a time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S") if time else NOTHING


def size(count: int | None) -> str:
    """Bytes, as 1.2 GiB."""
    if count is None:
        return NOTHING
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def percent(ratio: float) -> str:
    """A share as a percentage; 99.9 % is not 100 %."""
    return f"{int(ratio * 1000 + 1e-9) / 10:g}%"


def count(number: int, one: str, many: str = "") -> str:
    """1 step, 2 steps."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
