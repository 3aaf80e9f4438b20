"""Who is a member, and who is lost: decisions over monotonic time. Pure.

An agent shows life by its heartbeats (HTTP) and by its WebSocket. These rules find a loss:

- At once: the operator reports it, another pod of the same index says hello while this member is
  not heard, or a rank elsewhere lost a peer while the connection of this member is closed.
- After two heartbeat intervals: the connection closed and no heartbeat came since. A process that
  died leaves a closed connection and silence. One whose connection merely broke goes on with its
  heartbeats and reconnects.
- After the timeout: no sign of life came, or the connection closed and no new one was opened.

A member whose heartbeats report that they were sent late is on an overloaded machine. It gets up to
three timeouts, for the next heartbeat may be later.

A member is *suspect* while its connection is closed, or after two missed heartbeats. It keeps its
place, but no generation is formed until it shows life or is lost. So two members of one dead node
do not cost two generations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regroup_trainer.protocol.agent_messages import HeldSnapshot, Hello
from regroup_trainer.protocol.desired import Desired

SUSPECT_HEARTBEATS = 2
"""Missed heartbeats that make a member suspect."""
MOST_TIMEOUTS = 3.0
"""Times the timeout that a member on an overloaded machine gets at most."""
DELAYS = 4.0
"""A heartbeat that was late by d may be followed by one that is late by so many times d."""
LEAST_DELAY = 0.1
"""Seconds by which a heartbeat may be late on any machine."""
DELAY_COUNTS_SECONDS = 30.0
"""The greatest delay counts for so long after it was reported."""


@dataclass
class Member:
    """An agent that said hello. Times are monotonic seconds of the coordinator."""

    hello: Hello
    last_seen: float
    closed_at: float | None = None
    """When its connection closed; None while it is open."""
    leaving: str | None = None
    """Why it asked to leave."""
    step: int = 0
    snapshots: tuple[HeldSnapshot, ...] = ()
    """What its agent holds in memory."""

    delay: float = 0.0
    """Seconds by which its heartbeats were sent late: the greatest that counts."""
    delay_at: float = 0.0

    @property
    def name(self) -> str:
        """The UID of its pod."""
        return self.hello.member

    def note_delay(self, delay: float, now: float) -> None:
        """A heartbeat was sent `delay` seconds late."""
        if delay >= self.delay or now - self.delay_at > DELAY_COUNTS_SECONDS:
            self.delay, self.delay_at = delay, now

    def allowance(self, desired: Desired) -> float:
        """Seconds that it gets beyond every deadline, since its machine is overloaded; 0: it is
        not.
        """
        timeout = desired.timeout_milliseconds / 1000
        late = self.delay if self.delay > LEAST_DELAY else 0.0
        return min(DELAYS * late, (MOST_TIMEOUTS - 1) * timeout)

    def deadline(self, desired: Desired) -> float:
        """When it is lost, unless it shows life before."""
        timeout = desired.timeout_milliseconds / 1000 + self.allowance(desired)
        if self.closed_at is None:
            return self.last_seen + timeout
        silent_since = max(self.closed_at, self.last_seen)
        suspect = _suspect_seconds(desired) + self.allowance(desired)
        return min(self.closed_at + timeout, silent_since + suspect)

    def is_heard(self, desired: Desired, now: float) -> bool:
        """Whether it is certainly alive: it sends heartbeats, also since its connection closed."""
        came_back = self.closed_at is None or self.last_seen > self.closed_at
        return came_back and now - self.last_seen <= _suspect_seconds(desired)

    def is_suspect(self, desired: Desired, now: float) -> bool:
        """Whether it may be gone."""
        return self.closed_at is not None or now - self.last_seen > _suspect_seconds(desired)


def _suspect_seconds(desired: Desired) -> float:
    return SUSPECT_HEARTBEATS * desired.heartbeat_milliseconds / 1000


def expired(members: Iterable[Member], desired: Desired, now: float) -> list[Member]:
    """The members whose deadline is over, the longest silent first."""
    return sorted(
        (m for m in members if now >= m.deadline(desired)), key=lambda member: member.last_seen
    )


def restart_deadlines(members: Iterable[Member], now: float) -> None:
    """Count all silence from `now` on.

    For a coordinator that was paused itself: the silence until then says nothing about the others.
    """
    for member in members:
        member.last_seen = now
        if member.closed_at is not None:
            member.closed_at = now


def overload(members: Iterable[Member], desired: Desired) -> str:
    """A sentence about the member whose heartbeats are the latest; empty where none is late."""
    late = max(members, key=lambda member: member.delay, default=None)
    if late is None or not late.allowance(desired):
        return ""
    node = f"node {late.hello.node}" if late.hello.node else "its node"
    seconds = desired.timeout_milliseconds / 1000 + late.allowance(desired)
    return (
        f"heartbeats of {late.hello.pod} come {late.delay:.1f} s late because {node} is "
        f"overloaded, so its loss would be noticed after {seconds:.1f} s"
    )
