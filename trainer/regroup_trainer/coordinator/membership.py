"""Who is here, and who must be given up: pure decisions over monotonic time.

An agent shows life by heartbeats (HTTP) and by its WebSocket. The rules, in the order in which they find a loss:

- the operator says so, a newer pod of the same index says hello, or a rank elsewhere reports a dead peer while the
  connection of this member is closed: lost at once;
- the connection closed and no heartbeat came for two heartbeat intervals: lost. A process that died leaves a closed
  connection and silence; one whose connection merely broke keeps its heartbeats coming and reconnects;
- no sign of life for the timeout, or no new connection for the timeout after the old one closed: lost.

A member that is closed, or silent for two heartbeats, is *suspect*: it keeps its place, but no world is formed before
it is heard again or lost, so that two members of one dead node don't cost two generations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regroup_trainer.contract import Desired, HeldSnapshot, Hello

SUSPECT_HEARTBEATS = 2
"""Missed heartbeats that make a member suspect."""


@dataclass
class Member:
    """An agent that said hello. Times are monotonic seconds of the coordinator."""

    hello: Hello
    heard: float
    closed_at: float | None = None
    """When its connection was lost; None while there is one."""
    leaving: str | None = None
    """Why it asked to go."""
    step: int = 0
    snapshots: tuple[HeldSnapshot, ...] = ()
    """What its agent holds in memory."""

    @property
    def name(self) -> str:
        """Its UID."""
        return self.hello.member

    def deadline(self, desired: Desired) -> float:
        """When it is lost unless it shows life before."""
        timeout = desired.timeout_milliseconds / 1000
        if self.closed_at is None:
            return self.heard + timeout
        return min(self.closed_at + timeout, max(self.closed_at, self.heard) + _suspect_seconds(desired))

    def is_suspect(self, desired: Desired, now: float) -> bool:
        """Whether it may be gone."""
        return self.closed_at is not None or now - self.heard > _suspect_seconds(desired)


def _suspect_seconds(desired: Desired) -> float:
    return SUSPECT_HEARTBEATS * desired.heartbeat_milliseconds / 1000


def expired(members: Iterable[Member], desired: Desired, now: float) -> list[Member]:
    """The members whose deadline is over, the longest silent first."""
    return sorted((m for m in members if now >= m.deadline(desired)), key=lambda member: member.heard)


def restart_deadlines(members: Iterable[Member], now: float) -> None:
    """Forgive all silence so far: after a pause of the coordinator itself it says nothing about the others."""
    for member in members:
        member.heard = now
        if member.closed_at is not None:
            member.closed_at = now
