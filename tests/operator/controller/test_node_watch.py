"""What is known about nodes, by the operator's own clock."""

from __future__ import annotations

import asyncio
from typing import Any

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.node_watch import (
    MOST_UNKNOWN,
    NODES_A_LOOK,
    NODES_AT_ONCE,
    NodeWatch,
    keep_node,
)
from regroup_operator.informer.object_cache import ObjectCache, Seen
from regroup_operator.observe.observed import NodeState

KEY = ("default", "gpt")


class Nodes(Cluster):
    """Nodes and leases without an API server."""

    def __init__(self) -> None:
        self.ready = True
        self.renewed = "1"
        self.exists = True
        self.out_of_service = False
        self.read: list[str] = []
        """The nodes that were asked for."""
        self.leases: list[str] = []
        """The nodes whose lease was."""
        self.under_way = self.most_under_way = 0
        """Questions for a node."""
        self.states: ObjectCache[NodeState] = ObjectCache(10**6, 10**6)
        self.states.replace({}, 1, self.states.begin_list())

    def document(self) -> dict[str, Any]:
        """Any of the nodes."""
        status = "True" if self.ready else "Unknown"
        taints = [{"key": "node.kubernetes.io/out-of-service"}] if self.out_of_service else []
        conditions = [{"type": "Ready", "status": status}]
        return {"spec": {"taints": taints}, "status": {"conditions": conditions}}

    async def node(self, name: str) -> dict[str, Any] | None:
        self.read.append(name)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return self.document() if self.exists else None

    def report(self, name: str) -> str:
        """Let the watch show a node as it is. Returns its name."""
        version = self.states.version + 1
        state, size = keep_node(self.document())
        seen = Seen(("", name), f"uid-{name}", version, 1, ("", name), state, size)
        self.states.apply(seen, deleted=not self.exists)
        return name

    async def node_lease(self, name: str) -> dict[str, Any] | None:
        self.leases.append(name)
        return {"spec": {"renewTime": self.renewed}}


class Clock:
    """A clock that only a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_lease_is_stale_when_we_saw_it_unchanged_and_renewed_when_we_saw_it_change() -> (
    None
):
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, nodes.states, clock)
    first = (await watch.look(KEY, ["n1"], []))["n1"]
    assert (first.lease_renewed, first.lease_unchanged_seconds) == (False, 0)
    for seconds in (5, 10, 15, 20):
        clock.now += 5
        seen = (await watch.look(KEY, ["n1"], []))["n1"]
        assert seen.lease_unchanged_seconds == seconds
    nodes.renewed = "2"
    clock.now += 1
    moved = (await watch.look(KEY, ["n1"], []))["n1"]
    assert (moved.lease_renewed, moved.lease_unchanged_seconds) == (True, 0)


async def test_a_lease_is_not_stale_because_nobody_could_read_or_renew_it_meanwhile() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, nodes.states, clock)
    await watch.look(KEY, ["n1"], [])
    clock.now += 30
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_unchanged_seconds == 0
    clock.now += 5
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_unchanged_seconds == 5


async def test_a_node_that_nothing_points_to_any_more_is_forgotten() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, nodes.states, clock)
    await watch.look(KEY, ["n1"], [])
    nodes.renewed = "2"
    await watch.look(KEY, [], [])
    assert not (await watch.look(KEY, ["n1"], []))["n1"].lease_renewed, (
        "a new suspicion wants new proof"
    )


async def test_a_suspicion_wants_proof_that_is_newer_than_itself() -> None:
    nodes = Nodes()
    watch = NodeWatch(nodes, nodes.states)
    await watch.look(KEY, ["n1"], [])
    nodes.renewed = "2"
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_renewed
    assert not (await watch.look(KEY, ["n1"], ["n1"]))["n1"].lease_renewed
    await watch.look(("default", "other"), [], [])
    nodes.renewed = "3"
    assert (await watch.look(KEY, [], ["n1"]))["n1"].lease_renewed


async def test_not_ready_is_counted_from_the_report_of_the_watch() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, nodes.states, clock)
    watch.expect(KEY, {"n1"})
    assert watch.changed(nodes.report("n1")) == []
    nodes.ready = False
    assert watch.changed(nodes.report("n1")) == [KEY]
    assert watch.changed(nodes.report("n1")) == []
    clock.now += 7
    assert (await watch.look(KEY, [], []))["n1"].not_ready_seconds == 7
    nodes.ready = True
    assert watch.changed(nodes.report("n1")) == [KEY]
    assert (await watch.look(KEY, ["n1"], []))["n1"].not_ready_seconds == 0


async def test_a_node_that_is_gone_is_distinguished_from_one_that_is_not_ready() -> None:
    nodes = Nodes()
    nodes.exists = False
    found = (await NodeWatch(nodes, nodes.states).look(KEY, ["n1"], []))["n1"]
    assert (found.exists, found.ready) == (False, False)


async def test_a_job_reads_only_those_unready_nodes_that_it_has_pods_on() -> None:
    nodes = Nodes()
    watch = NodeWatch(nodes, nodes.states)
    nodes.ready = False
    for number in range(100):
        watch.changed(nodes.report(f"n{number}"))
    watch.expect(KEY, {"n1", "healthy"})
    assert set(await watch.look(KEY, [], [])) == {"n1"}
    assert nodes.read == ["n1"]


async def test_each_job_sees_that_its_node_was_deleted_and_then_it_is_forgotten() -> None:
    nodes, other = Nodes(), ("default", "other")
    watch = NodeWatch(nodes, nodes.states)
    for key in (KEY, other):
        watch.expect(key, {"n1"})
    nodes.report("n1")
    nodes.exists = False
    assert watch.changed(nodes.report("n1")) == [KEY, other]
    for key in (KEY, other, KEY):
        assert not (await watch.look(key, [], []))["n1"].exists, "the first must not hide it"
    watch.expect(KEY, set())
    assert await watch.look(KEY, [], []) == {}
    watch.expect(other, set())
    watch.expect(KEY, {"n1"})
    assert await watch.look(KEY, [], []) == {}, "nothing is kept of nodes that are gone"
    assert watch.changed("unknown") == []
    nodes.exists = True
    assert watch.changed(nodes.report("unknown")) == []


async def test_a_healthy_node_comes_from_memory_and_any_other_is_read() -> None:
    nodes = Nodes()
    watch = NodeWatch(nodes, nodes.states)
    assert (await watch.look(KEY, [nodes.report("n1")], []))["n1"].ready
    assert nodes.read == []
    assert (await watch.look(KEY, ["n2"], []))["n2"].exists, "memory may be behind"
    for attribute in ("out_of_service", "ready"):
        nodes.read.clear()
        setattr(nodes, attribute, attribute == "out_of_service")
        nodes.report("n1")
        setattr(nodes, attribute, attribute != "out_of_service")
        seen = (await watch.look(KEY, ["n1"], []))["n1"]
        assert (seen.ready, seen.out_of_service) == (True, False)
        assert nodes.read == ["n1"]


async def test_a_node_whose_value_is_not_kept_wakes_nobody_and_is_read() -> None:
    nodes = Nodes()
    nodes.states = ObjectCache(0, 0)
    watch = NodeWatch(nodes, nodes.states)
    watch.expect(KEY, {"n1"})
    assert watch.changed(nodes.report("n1")) == []
    assert (await watch.look(KEY, ["n1"], []))["n1"].ready
    assert nodes.read == ["n1"]


async def test_nodes_that_were_invented_cost_few_requests_and_hide_no_real_one() -> None:
    """Whoever may create pods may name 5,000 nodes that never were."""
    nodes = Nodes()
    watch = NodeWatch(nodes, nodes.states)
    nodes.report("real")
    nodes.exists = False
    ghosts = [f"ghost{number}" for number in range(5_000)]
    watch.expect(KEY, {*ghosts, "real"})
    found = await watch.look(KEY, [*ghosts, "real"], [])
    assert found["real"].exists
    assert len(nodes.read) == len(found) - 1 == MOST_UNKNOWN
    assert nodes.leases == ["real"], "what does not exist renews no lease"
    assert watch.unknown([*ghosts, "real"]) == frozenset(ghosts)


async def test_a_node_that_was_deleted_is_no_invention_while_a_job_has_pods_there() -> None:
    nodes = Nodes()
    watch = NodeWatch(nodes, nodes.states)
    watch.expect(KEY, {"n1"})
    nodes.report("n1")
    nodes.exists = False
    watch.changed(nodes.report("n1"))
    assert watch.unknown(["n1"]) == frozenset()
    watch.expect(KEY, set())
    assert watch.unknown(["n1"]) == {"n1"}
    unlisted = ObjectCache[NodeState](10**6, 10**6)
    assert NodeWatch(nodes, unlisted).unknown(["n1"]) == frozenset(), "nobody knows yet"


async def test_without_the_right_to_read_nodes_nothing_is_known() -> None:
    assert await NodeWatch(Nodes(), None).look(KEY, ["n1"], []) == {}


async def test_of_thousands_of_failed_nodes_each_is_read_in_its_turn_and_few_at_a_time() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, nodes.states, clock)
    nodes.ready = False
    names = [nodes.report(f"n{number}") for number in range(3 * NODES_A_LOOK)]
    for name in names:
        watch.changed(name)
    watch.expect(KEY, set(names))
    seen: set[str] = set()
    for _ in range(3):
        clock.now += 1
        found = await watch.look(KEY, [], [])
        assert len(found) == NODES_A_LOOK
        seen |= found.keys()
    assert seen == set(names)
    assert sorted(nodes.read) == sorted(names)
    assert nodes.most_under_way <= NODES_AT_ONCE
    again = await watch.look(KEY, [], [])
    assert {node.lease_unchanged_seconds for node in again.values()} == {2.0}
