"""Who is a member, and who is lost: decisions over monotonic time. Pure.

An agent shows life by its heartbeats (HTTP) and by its WebSocket. These rules find a loss:

- At once: the operator reports it, another pod of the same index sends its hello while this member
  is unresponsive, or a rank elsewhere lost a peer while the connection of this member is closed,
  unless the coordinator closed it.
- After two heartbeat intervals: the connection closed and no heartbeat came since. A process that
  died leaves a closed connection, and sends nothing. One whose connection merely broke goes on with
  its heartbeats and reconnects.
- After the timeout: no sign of life came, or the connection closed and no new one was opened.

A member whose heartbeats report that they were sent late is on an overloaded machine. It gets up to
three timeouts, for the next heartbeat may be later.

A member is *suspect* while its connection is closed, or after two missed heartbeats. It keeps its
place, but no generation is formed until it shows life or is lost. So two members of one dead node
do not cost two generations.

A coordinator that was paused itself does not count that time. A quarter of a second of
each pause counts: what has arrived meanwhile is read before anybody is lost. So a member that is
gone is found, however often the coordinator is paused.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from regroup_trainer.protocol.agent_messages import HeldSnapshot, Hello, Stack
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import MemberRecord
from regroup_trainer.protocol.rank_messages import Report

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
RECONNECT_SECONDS = 1.0
"""For agents that gave up their connections during a pause of the coordinator to make new ones."""


@dataclass
class Member:
    """An agent that sent its hello. Times are monotonic seconds of the coordinator."""

    hello: Hello
    last_seen: float
    closed_at: float | None = None
    """When its connection closed; None while it is open."""
    closed_here: bool = False
    """Whether the coordinator closed it, which says nothing of its agent."""
    leaving: str | None = None
    """Why it asked to leave."""
    step: int = 0
    snapshots: tuple[HeldSnapshot, ...] = ()
    """What its agent holds in memory."""

    delay: float = 0.0
    """Seconds by which its heartbeats were sent late: the greatest that counts."""
    delay_at: float = 0.0

    place: MemberRecord | None = None
    """Its place in the generation that it reports, while none is adopted yet."""
    early: dict[tuple[type[Report], int], Report] = field(default_factory=dict)
    """What it reported since its hello on a generation that is not adopted yet: the newest of each
    kind and rank.
    """

    @property
    def name(self) -> str:
        """The UID of its pod."""
        return self.hello.member

    @property
    def last_sign(self) -> float:
        """When it last showed life. A process that ends closes its connection."""
        return max(self.last_seen, self.closed_at or self.last_seen)

    def note_early(self, reports: Iterable[Report]) -> None:
        """It reported on its generation, which is not adopted yet."""
        record, place = self.hello.record, self.place
        if record is None or place is None:
            return
        for report in reports:
            if isinstance(report, Stack):
                continue  # a former coordinator asked for it, and it is large
            if report.generation == record.number and report.rank in place.own_ranks:
                self.early.pop((type(report), report.rank), None)  # the newest is the last
                self.early[type(report), report.rank] = report

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
        suspect = _suspect_seconds(desired) + self.allowance(desired)
        return min(self.closed_at + timeout, self.last_sign + suspect)

    def is_responsive(self, desired: Desired, now: float) -> bool:
        """Whether it is certainly alive: it sends heartbeats, also since its connection closed."""
        came_back = self.closed_at is None or self.last_seen > self.closed_at
        return came_back and now - self.last_seen <= _suspect_seconds(desired)

    def is_suspect(self, desired: Desired, now: float) -> bool:
        """Whether it may be gone."""
        return self.closed_at is not None or now - self.last_seen > _suspect_seconds(desired)


def _suspect_seconds(desired: Desired) -> float:
    return SUSPECT_HEARTBEATS * desired.heartbeat_milliseconds / 1000


class Members(Mapping[str, Member]):
    """The members by name, in the order of their first hellos.

    What decisions ask about all of them is kept beside them, so that a message costs the same
    however many there are. So a member is changed through these methods only, and `now` never goes
    back.
    """

    def __init__(self) -> None:
        self._all: dict[str, Member] = {}
        self._by_contact: OrderedDict[str, Member] = OrderedDict()
        """The same members, that of the oldest sign of life first."""
        self.staying: dict[int, Member] = {}
        """Index -> the member that means to stay. Where another has its index, that one leaves."""
        self.leaving: dict[str, Member] = {}
        self.closed: dict[str, Member] = {}
        """Those without a connection, the longest first."""
        self.overloaded: dict[str, Member] = {}
        """Those whose heartbeats come so late that they get more time."""
        self.changed: list[str] = []
        """Names of those that came, went, asked to leave or hold other snapshots since the last
        look for whom to release.
        """
        self.revision = 0
        """Raised when a member comes or goes, asks to leave, loses its connection or has a new one.
        """
        self.ranks = 0
        """Rank processes that all of them run, or could: a GPU each."""
        self._bound, self._fitting = 0, 0
        self._trusted_from = -math.inf
        """When agents have noticed that this process goes on after a pause."""

    def __getitem__(self, name: str) -> Member:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def stays(self, name: str) -> bool:
        """Whether it is here and has not asked to leave."""
        return name in self._all and name not in self.leaving

    def allowance(self, desired: Desired) -> float:
        """Seconds more for ranks while the machine of a member is overloaded; 0: none is."""
        return max((member.allowance(desired) for member in self.overloaded.values()), default=0.0)

    def add(self, member: Member) -> None:
        """It sent its hello just now. It takes the place of a member of that name."""
        if known := self._all.get(member.name):
            self._forget(known)
        self._all[member.name] = self._by_contact[member.name] = member
        self.ranks += member.hello.ranks
        if member.leaving is None:
            self.staying[member.hello.index] = member
            self._fitting += member.hello.index < self._bound
        else:
            self.leaving[member.name] = member
        self.changed.append(member.name)
        self.revision += 1

    def remove(self, name: str) -> Member | None:
        """Forget a member; None where there is none of that name."""
        if member := self._all.pop(name, None):
            self._forget(member)
            self.changed.append(name)
            self.revision += 1
        return member

    def clear(self) -> None:
        """Forget all of them."""
        for name in [*self]:
            self.remove(name)

    def on_seen(self, member: Member, now: float) -> None:
        """A sign of life came."""
        member.last_seen = now
        self._by_contact.move_to_end(member.name)

    def on_delay(self, member: Member, delay: float, now: float) -> None:
        """A heartbeat was sent `delay` seconds late."""
        member.note_delay(delay, now)
        if member.delay > LEAST_DELAY:
            self.overloaded[member.name] = member
        else:
            self.overloaded.pop(member.name, None)

    def on_closed(self, member: Member, now: float, *, here: bool = False) -> None:
        """Its connection closed. `here`: the coordinator closed it."""
        member.closed_at, member.closed_here = now, here
        self.closed[member.name] = member
        self.revision += 1

    def on_leaving(self, member: Member, reason: str) -> None:
        """It asked to leave."""
        self._unstay(member)
        member.leaving = reason
        self.leaving[member.name] = member
        self.changed.append(member.name)
        self.revision += 1

    def on_held(self, member: Member, snapshots: tuple[HeldSnapshot, ...]) -> None:
        """It holds these from now on."""
        member.snapshots = snapshots
        self.changed.append(member.name)

    def fitting(self, workers: int) -> int:
        """How many mean to stay and have an index below `workers`."""
        if workers != self._bound:
            self._bound = workers
            self._fitting = sum(index < workers for index in self.staying)
        return self._fitting

    def first_suspect(self, desired: Desired, now: float) -> Member | None:
        """A member that may be gone; None: all are certainly here."""
        for oldest in (self.closed, self._by_contact):
            first = next(iter(oldest.values()), None)
            if first is not None and first.is_suspect(desired, now):
                return first
        return None

    def expired(self, desired: Desired, now: float) -> list[Member]:
        """The members whose deadline is over, that of the oldest sign of life first."""
        timeout = desired.timeout_milliseconds / 1000
        least = min(timeout, _suspect_seconds(desired))
        late = takewhile(lambda one: now >= one.last_seen + timeout, self._by_contact.values())
        closed = takewhile(
            lambda one: one.closed_at is None or now >= one.closed_at + least, self.closed.values()
        )
        found = {member.name: member for group in (late, closed) for member in group}
        return expired(found.values(), desired, now)

    def forgive(self, seconds: float, now: float) -> None:
        """This process was paused: in so many seconds nothing was known of the members. Nor
        does a connection that was given up meanwhile.
        """
        for member in self._all.values():
            member.last_seen = min(now, member.last_seen + seconds)
            if member.closed_at is not None:
                member.closed_at = min(now, member.closed_at + seconds)
        self._trusted_from = now + RECONNECT_SECONDS

    def disconnected(self) -> list[Member]:
        """Those whose closed connections are evidence that they are gone."""
        return [
            one
            for one in self.closed.values()
            if not one.closed_here and (one.closed_at or 0.0) >= self._trusted_from
        ]

    def _forget(self, member: Member) -> None:
        self._unstay(member)
        self.ranks -= member.hello.ranks
        for some in (self._by_contact, self.leaving, self.closed, self.overloaded):
            some.pop(member.name, None)

    def _unstay(self, member: Member) -> None:
        if self.staying.get(member.hello.index) is member:
            del self.staying[member.hello.index]
            self._fitting -= member.hello.index < self._bound


def expired(members: Iterable[Member], desired: Desired, now: float) -> list[Member]:
    """The members whose deadline is over, that of the oldest sign of life first."""
    return sorted(
        (m for m in members if now >= m.deadline(desired)), key=lambda member: member.last_seen
    )


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
