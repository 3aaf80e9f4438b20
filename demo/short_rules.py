"""The chart's rules of alerts, in which all that is said of time is divided by a factor. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(?<=[\[:])\d+[smhd](?=[:\]])|(?<=offset )\d+[smhd]")
SECONDS = re.compile(r"(?<=[<>] )\d{3,}\b")
"""Numbers that an age in seconds is compared with: the only ones of three digits and more."""
Json = dict[str, Any]


def shorter(duration: str, factor: int) -> str:
    """A duration divided by the factor."""
    return f"{int(duration[:-1]) * UNITS[duration[-1]] * 1000 // factor}ms"


def shortened(rule: Json, factor: int) -> Json:
    """A rule whose windows, offsets, ages and `for` are divided by the factor."""
    expression = DURATION.sub(lambda found: shorter(found[0], factor), rule["expr"])
    expression = SECONDS.sub(lambda found: f"{int(found[0]) / factor:g}", expression)
    held = {"for": shorter(rule["for"], factor)} if "for" in rule else {}
    return {**rule, "expr": expression, **held}


def shortened_groups(groups: Iterable[Json], factor: int) -> Json:
    """A file of rules with these groups, all shortened."""
    return {
        "groups": [
            {**one, "rules": [shortened(rule, factor) for rule in one["rules"]]} for one in groups
        ]
    }
