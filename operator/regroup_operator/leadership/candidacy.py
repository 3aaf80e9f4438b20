"""What one replica knows of the Lease, and what it may do now. Pure.

Times are seconds of this replica's own clock. Those in the Lease are for people: clocks of others
may show anything. A replica takes the Lease when it has seen it unchanged for as long as the Lease
says. Its holder stops earlier, counted from when it sent the last write that succeeded. So two
never act at once while the fastest clock runs less than 1.5 times as fast as the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

LEASE_SECONDS = 15
"""Without a renewal of the Lease, until another replica takes it."""
LONGEST_SECONDS = 60
"""The same for a Lease that says it counts for longer. One of 68 years is nobody's."""
ACT_SECONDS = 10.0
"""From the sending of a write of the Lease that succeeds, until its holder no longer acts."""
MOST_TRANSITIONS = 2**31 - 1
"""The API server refuses more."""
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
"""As the type MicroTime of Kubernetes."""


@dataclass(frozen=True)
class Lease:
    """The Lease as the API server has it."""

    uid: str
    version: str
    holder: str = ""
    """Identity of the replica that holds it; empty: none."""
    seconds: float = LEASE_SECONDS
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    @property
    def held_seconds(self) -> float:
        """How long others leave it to its holder. Another release may hold it for longer."""
        return min(max(self.seconds, LEASE_SECONDS), LONGEST_SECONDS) if self.holder else 0.0


@dataclass(frozen=True)
class Candidacy:
    """One replica, which is called `identity`. A process that starts anew needs another one."""

    identity: str
    lease: Lease | None = None
    """As last seen; None: there was none."""
    wrote_last: bool = False
    """Whether `lease` is the answer to the last write, so that the next one needs no read."""
    free_at: float = -math.inf
    """When this replica may take it, unless it sees it change before."""
    acts_until: float = -math.inf

    def leads(self, now: float) -> bool:
        """Whether this replica may act."""
        return now < self.acts_until

    def may_write(self, now: float) -> bool:
        """Whether it may take or renew the Lease as last seen. The API server refuses that when the
        Lease has changed since.
        """
        holds = self.lease is not None and self.lease.holder == self.identity
        return holds or self.leads(now) or now >= self.free_at

    def seen(self, lease: Lease | None, now: float) -> Candidacy:
        """After an answer to a read, which came at `now`."""
        is_lost = lease is not None and lease.holder != self.identity
        return replace(
            self,
            lease=lease,
            free_at=self._free_at(lease, now),
            acts_until=-math.inf if is_lost else self.acts_until,
        )

    def _free_at(self, lease: Lease | None, now: float) -> float:
        counts = lease or self.lease  # whose holder may act though somebody has deleted it
        if counts is None or _is_same(lease, self.lease):
            return self.free_at
        return now + counts.held_seconds

    def wrote(self, lease: Lease, sent_at: float) -> Candidacy:
        """After a write that succeeded. It was sent at `sent_at`, and others have seen the Lease
        change no earlier.
        """
        return replace(
            self,
            lease=lease,
            wrote_last=True,
            acts_until=sent_at + ACT_SECONDS,
        )

    def doubted(self) -> Candidacy:
        """After a write that was refused or not answered."""
        return replace(self, wrote_last=False)

    def retired(self) -> Candidacy:
        """It acts no more."""
        return replace(self, acts_until=-math.inf)

    def spec(self, time: datetime) -> dict[str, Any]:
        """Spec of the Lease that this replica holds from now on. `time`: in UTC, for people."""
        held = self.lease or Lease("", "")
        is_new = held.holder != self.identity
        text = (time if is_new else _after(held.renewed, time)).strftime(_MICRO_TIME)
        transitions = held.transitions + (is_new and self.lease is not None)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": text if is_new or not held.acquired else held.acquired,
            "renewTime": text,
            "leaseTransitions": min(max(0, transitions), MOST_TRANSITIONS),
        }


def _is_same(one: Lease | None, other: Lease | None) -> bool:
    """Whether nobody has taken or renewed it in between. Who writes a label or an annotation all
    the time does not keep it from being taken.
    """
    if one is None or other is None:
        return False
    return replace(one, version=other.version) == other


def _after(renewed: str, time: datetime) -> datetime:
    """`time`, or the first moment after `renewed`: others see a renewal also while the wall clock
    stands still, or goes back.
    """
    try:
        former = datetime.strptime(renewed, _MICRO_TIME).replace(tzinfo=UTC)
        return max(time, former + timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return time


def read_lease(document: Mapping[str, Any]) -> Lease:
    """A Lease from an answer of the API server, which checks the types of its fields. Raises
    KeyError, TypeError or AttributeError for what is no Lease.
    """
    metadata, spec = document["metadata"], document.get("spec") or {}
    return Lease(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        seconds=spec.get("leaseDurationSeconds") or LEASE_SECONDS,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )
