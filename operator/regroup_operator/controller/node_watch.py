"""Knows the nodes that may have failed, and for how long each fact about them has held.

Memory knows all nodes. One that it shows as failed or gone is read again, since memory may be
behind, and the pods of such a node may be deleted by force.

Durations are measured by this operator's clock. A lease is stale when the operator has seen it
unchanged for long enough, so that the clocks of nodes do not matter.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from regroup_operator.api import names
from regroup_operator.api.resource import Key, Object
from regroup_operator.controller.cluster import Cluster
from regroup_operator.informer.object_cache import ObjectCache
from regroup_operator.informer.resource_version import NEVER
from regroup_operator.observe.kubernetes_objects import read_node
from regroup_operator.observe.observed import Node, NodeState, Pod

LEASE_GAP_SECONDS = 6.0
"""A lease counts as unchanged only for the time in which it was read at least this often."""
MOST_UNKNOWN = 16
"""Nodes that memory lacks, and that are asked for at a look. Whoever may create pods may name nodes
that never were.
"""
NODES_A_LOOK = 256
"""Are read, of those that a job has to know about; the others in its next looks. In an outage all
nodes of a job with thousands of workers may be not Ready.
"""
NODES_AT_ONCE = 8
"""Are read for all jobs together: requests of other rounds have room beside them."""
_NODE_BYTES = 512


def keep_node(document: Object) -> tuple[NodeState, int]:
    """What memory keeps of a node, and about how many bytes it takes."""
    return read_node(document), _NODE_BYTES


@dataclass
class _Trace:
    """What was observed of a node since a job first read it, or suspects it."""

    lease: str | None
    lease_since: float
    read_at: float
    suspected: bool
    renewed: bool = False
    not_ready_since: float | None = None


class NodeWatch:
    """Knows nodes, their leases, and which jobs have pods on which node. `states` is the memory of
    nodes; None: the operator may not read them.
    """

    def __init__(
        self,
        cluster: Cluster,
        states: ObjectCache[NodeState] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._states = states
        self._clock = clock
        self._traces: dict[Key, dict[str, _Trace]] = {}
        self._not_ready: dict[str, float] = {}
        """Nodes that the watch reported not Ready or deleted, and since when."""
        self._gone: set[str] = set()
        """Those of them that do not exist. They are kept while a job has pods on them."""
        self._places = asyncio.Semaphore(NODES_AT_ONCE)
        self._jobs: dict[Key, set[str]] = {}
        """Job -> the nodes that its pods are on."""

    def expect(self, key: Key, nodes: set[str]) -> None:
        """The job has pods on these nodes."""
        left = self._jobs.get(key, set()) - nodes
        self._jobs[key] = nodes
        self._drop_gone(left)

    def unknown(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these nodes that memory has never shown; none before its first list."""
        states = self._states
        if states is None or states.version == NEVER:
            return frozenset()
        return frozenset(n for n in names if not states.get(("", n)) and n not in self._gone)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._traces.pop(key, None)
        self._drop_gone(self._jobs.pop(key, set()))

    def changed(self, name: str) -> list[Key]:
        """Memory shows this node otherwise. Returns the jobs with pods on it when it became Ready,
        or not Ready, or is gone.
        """
        seen = self._states.get(("", name)) if self._states else None
        if seen is None:
            return self._deleted(name)
        return self._reported(name, ready=seen.value.ready) if seen.value else []

    def _reported(self, name: str, *, ready: bool) -> list[Key]:
        if ready == (name not in self._not_ready):
            return []
        if ready:
            self._not_ready.pop(name)
            self._gone.discard(name)
        else:
            self._not_ready[name] = self._clock()
        return self._jobs_on(name)

    def _deleted(self, name: str) -> list[Key]:
        self._not_ready.setdefault(name, self._clock())
        self._gone.add(name)
        self._drop_gone({name})
        return self._jobs_on(name)

    def _jobs_on(self, name: str) -> list[Key]:
        return [key for key, nodes in self._jobs.items() if name in nodes]

    def _drop_gone(self, names: Iterable[str]) -> None:
        """Forget those of these nodes that are gone and that no job has pods on."""
        for name in self._gone.intersection(names):
            if not self._jobs_on(name):
                self._gone.discard(name)
                self._not_ready.pop(name, None)

    async def look(
        self, key: Key, names: Iterable[str], suspects: Collection[str]
    ) -> dict[str, Node]:
        """These nodes, for a job, its suspects, and those of its nodes that the watch reported as
        not Ready. Empty when the operator may not read nodes. Of those that memory lacks, the first
        MOST_UNKNOWN; of all, the NODES_A_LOOK that were not read for the longest time.

        A new suspicion needs new evidence: observations from before it do not show whether the node
        has recovered.
        """
        if self._states is None:
            return {}
        own = self._not_ready.keys() & self._jobs.get(key, set())
        wanted = tuple(dict.fromkeys((*names, *suspects, *own)))
        unknown = self.unknown(wanted)
        left_out = {*[name for name in wanted if name in unknown][MOST_UNKNOWN:]}
        wanted = tuple(name for name in wanted if name not in left_out)
        former = self._traces.get(key, {})
        self._traces[key] = {
            name: former[name]
            for name in wanted
            if name in former and (former[name].suspected or name not in suspects)
        }
        turn = sorted(wanted, key=lambda name: self._read_at(key, name))[:NODES_A_LOOK]
        found = await asyncio.gather(*(self._look_at(key, n, n in suspects) for n in turn))
        return dict(zip(turn, found, strict=True))

    def _read_at(self, key: Key, name: str) -> float:
        trace = self._traces[key].get(name)
        return trace.read_at if trace else -math.inf

    async def _state(self, name: str) -> NodeState | None:
        seen = self._states.get(("", name)) if self._states else None
        if seen and seen.value == NodeState(ready=True, out_of_service=False):
            return seen.value
        document = await self._cluster.node(name)
        return read_node(document) if document else None

    async def _look_at(self, key: Key, name: str, suspected: bool) -> Node:
        async with self._places:
            state = await self._state(name)
            lease = await self._cluster.node_lease(name) if state else None
        now = self._clock()
        renewal = lease["spec"].get("renewTime") if lease else None
        trace = self._traces[key].setdefault(name, _Trace(renewal, now, now, suspected))
        # Nobody may have been able to renew a lease while the API server did not answer us either.
        if now - trace.read_at > LEASE_GAP_SECONDS:
            trace.lease_since = now
        trace.read_at = now
        trace.suspected = suspected
        if renewal != trace.lease:
            trace.lease, trace.lease_since, trace.renewed = renewal, now, True
        if state is None:
            return Node(name, exists=False, ready=False)
        ready = state.ready
        since = trace.not_ready_since or self._not_ready.get(name, now)
        trace.not_ready_since = None if ready else since
        return Node(
            name=name,
            ready=ready,
            not_ready_seconds=0.0 if ready else now - since,
            out_of_service=state.out_of_service,
            lease_renewed=trace.renewed,
            lease_unchanged_seconds=now - trace.lease_since,
        )


def pointed_to(pods: tuple[Pod, ...], coordinator_fails: bool, lost: set[str]) -> list[str]:
    """The nodes to read, that of the coordinator first. Nodes are not polled: only those that
    something points to are read.
    """
    suspicious = [pod for pod in pods if pod.uid in lost or (pod.terminating and not pod.is_forced)]
    leading = [pod for pod in pods if coordinator_fails and pod.role == names.COORDINATOR]
    return [pod.node for pod in (*leading, *suspicious) if pod.node]
