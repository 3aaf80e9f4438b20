"""What is known about nodes that something points to: read when asked for, with how long each fact has held.

Durations are by this operator's clock: a lease is stale when *we* saw it unchanged, whatever the clocks of others say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from regroup_operator.cluster import Cluster
from regroup_operator.coordination import Key
from regroup_operator.observed import Node, is_out_of_service, read_ready


@dataclass
class _Trace:
    """What was seen of a node since a job asks for it, or suspects it."""

    lease: str | None
    lease_since: float
    suspected: bool
    renewed: bool = False
    not_ready_since: float | None = None


class NodeWatch:
    """Reads nodes and their leases; knows which jobs have pods where."""

    def __init__(self, cluster: Cluster, *, allowed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._clock = clock
        self._traces: dict[Key, dict[str, _Trace]] = {}
        self._not_ready: dict[str, float] = {}
        """Nodes that the watch reported not Ready, and since when."""
        self._jobs: dict[Key, set[str]] = {}
        """Job -> the nodes that its pods are on."""

    def expect(self, key: Key, nodes: set[str]) -> None:
        """The job has pods on these nodes."""
        self._jobs[key] = nodes

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._jobs.pop(key, None)
        self._traces.pop(key, None)

    def reported(self, name: str, *, ready: bool) -> list[Key]:
        """The watch saw a node; the jobs that have pods on it, when it is news."""
        if ready == (name not in self._not_ready):
            return []
        if ready:
            self._not_ready.pop(name)
        else:
            self._not_ready[name] = self._clock()
        return [key for key, nodes in self._jobs.items() if name in nodes]

    async def look(self, key: Key, names: Iterable[str], suspects: Collection[str]) -> dict[str, Node]:
        """Read these nodes for a job, its suspects, and those reported not Ready; empty when we may not read nodes.

        A new suspicion wants new proof: what was seen of a node before it was suspected, or before the job asked for
        it, says nothing about whether it is back.
        """
        if not self._allowed:
            return {}
        wanted = sorted({*names, *suspects, *self._not_ready})
        former = self._traces.get(key, {})
        self._traces[key] = {
            name: former[name] for name in wanted if name in former and (former[name].suspected or name not in suspects)
        }
        found = await asyncio.gather(*(self._read(key, name, name in suspects) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _read(self, key: Key, name: str, suspected: bool) -> Node:
        document, lease = await asyncio.gather(self._cluster.node(name), self._cluster.node_lease(name))
        now = self._clock()
        renewal = lease["spec"].get("renewTime") if lease else None
        trace = self._traces[key].setdefault(name, _Trace(renewal, now, suspected))
        trace.suspected = suspected
        if renewal != trace.lease:
            trace.lease, trace.lease_since, trace.renewed = renewal, now, True
        if document is None:
            self._not_ready.pop(name, None)
            return Node(name, exists=False, ready=False)
        ready = read_ready(document)
        since = trace.not_ready_since or self._not_ready.get(name, now)
        trace.not_ready_since = None if ready else since
        return Node(
            name=name,
            ready=ready,
            not_ready_seconds=0.0 if ready else now - since,
            out_of_service=is_out_of_service(document),
            lease_renewed=trace.renewed,
            lease_unchanged_seconds=now - trace.lease_since,
        )
