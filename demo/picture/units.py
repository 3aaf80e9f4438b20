"""Numbers in Grafana's format: units, decimals, ticks of value axes and time axes."""

from __future__ import annotations

import math
import time

RATES = {"ops": " ops/s", "reqps": " req/s"}
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)


def shown(value: float, unit: str, decimals: int | None = None) -> tuple[str, str]:
    """The figure and its suffix, such as ("12.3", " K"). `unit` is one of Grafana's unit ids."""
    if unit == "percentunit":
        return fixed(value * 100, decimals if decimals is not None else 1), "%"
    if unit == "s":
        return seconds(value, decimals)
    if unit == "short":
        return scaled(value, 1000, ("", " K", " Mil", " Bil"), decimals)
    if unit == "bytes":
        return scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"), decimals)
    return fixed(value, decimals), RATES.get(unit, "")


def text(value: float, unit: str, decimals: int | None = None) -> str:
    """The figure and its suffix as one text."""
    return "".join(shown(value, unit, decimals))


def fixed(value: float, decimals: int | None) -> str:
    """The value with this many decimals. None: three significant digits."""
    if decimals is None:
        magnitude = math.floor(math.log10(abs(value))) if value else 0
        trimmed = f"{value:.{max(0, 2 - magnitude)}f}"
        return trimmed.rstrip("0").rstrip(".") if "." in trimmed else trimmed
    return f"{value:.{decimals}f}"


def scaled(
    value: float, base: float, suffixes: tuple[str, ...], decimals: int | None
) -> tuple[str, str]:
    """The value divided by the largest power of `base` that leaves at least 1, and its suffix."""
    power = 0
    while abs(value) >= base and power < len(suffixes) - 1:
        value, power = value / base, power + 1
    return fixed(value, None if power == 0 and value == int(value) else decimals), suffixes[power]


def seconds(value: float, decimals: int | None) -> tuple[str, str]:
    """A duration in seconds as a figure and a unit from milliseconds to days."""
    if not value:
        return "0", " s"
    for limit, size, suffix in (
        (1, 0.001, " ms"),
        (60, 1, " s"),
        (3600, 60, " min"),
        (86400, 3600, " hours"),
    ):
        if abs(value) < limit:
            return fixed(value / size, 0 if suffix == " ms" else decimals), suffix
    return fixed(value / 86400, decimals), " days"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that cover [low, high], about `count` of them."""
    if high <= low:
        high = low + (abs(low) or 1)
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in STEPS if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def tick_decimals(values: list[float], scale: float = 1) -> int:
    """The number of decimals at which neighbouring ticks differ."""
    step = (values[1] - values[0]) * scale if len(values) > 1 else 1
    return max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0


def time_ticks(start: float, end: float, count: int) -> list[tuple[float, str]]:
    """Round local times in [start, end] with their labels."""
    step = next(
        (s for s in TIME_STEPS if (end - start) / s <= count), math.ceil((end - start) / count)
    )
    first = math.ceil(start / step) * step
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    return [(t, time.strftime(form, time.localtime(t))) for t in range(first, int(end) + 1, step)]
