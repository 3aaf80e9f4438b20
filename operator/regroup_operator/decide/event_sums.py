"""One event for many of a kind: a job remembers few events, and each costs a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from regroup_operator.decide.plan import Event
from regroup_trainer.protocol.message import named

EVENTS_APART = 3
"""Pods or nodes that have an event each when one thing happens to them in a round."""


def sum_up(events: Mapping[str, Event], what: str) -> tuple[Event, ...]:
    """The events of pods or nodes, by name, to which one thing happened in a round. Many are one:
    `what` says of their number what happened. The same ones give the same event again.
    """
    if len(events) <= EVENTS_APART:
        return tuple(events.values())
    first, count = next(iter(events.values())), len(events)
    text = f"{count} {what}: {named(events, count)}; the first: {first.message}"
    return (replace(first, message=text, key=f"{first.key}+{count - 1}"),)
