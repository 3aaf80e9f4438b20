"""What is known about nodes, by the operator's own clock."""

from __future__ import annotations

from typing import Any

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.node_watch import NodeWatch

KEY = ("default", "gpt")


class Nodes(Cluster):
    """Nodes and leases without an API server."""

    def __init__(self) -> None:
        self.ready = True
        self.renewed = "1"
        self.exists = True

    async def node(self, name: str) -> dict[str, Any] | None:
        status = "True" if self.ready else "Unknown"
        return (
            {"status": {"conditions": [{"type": "Ready", "status": status}]}}
            if self.exists
            else None
        )

    async def node_lease(self, name: str) -> dict[str, Any] | None:
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
    watch = NodeWatch(nodes, allowed=True, clock=clock)
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
    watch = NodeWatch(nodes, allowed=True, clock=clock)
    await watch.look(KEY, ["n1"], [])
    clock.now += 30
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_unchanged_seconds == 0
    clock.now += 5
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_unchanged_seconds == 5


async def test_a_node_that_nothing_points_to_any_more_is_forgotten() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, allowed=True, clock=clock)
    await watch.look(KEY, ["n1"], [])
    nodes.renewed = "2"
    await watch.look(KEY, [], [])
    assert not (await watch.look(KEY, ["n1"], []))["n1"].lease_renewed, (
        "a new suspicion wants new proof"
    )


async def test_a_suspicion_wants_proof_that_is_newer_than_itself() -> None:
    nodes = Nodes()
    watch = NodeWatch(nodes, allowed=True)
    await watch.look(KEY, ["n1"], [])
    nodes.renewed = "2"
    assert (await watch.look(KEY, ["n1"], []))["n1"].lease_renewed
    assert not (await watch.look(KEY, ["n1"], ["n1"]))["n1"].lease_renewed
    await watch.look(("default", "other"), [], [])
    nodes.renewed = "3"
    assert (await watch.look(KEY, [], ["n1"]))["n1"].lease_renewed


async def test_not_ready_is_counted_from_the_report_of_the_watch() -> None:
    nodes, clock = Nodes(), Clock()
    watch = NodeWatch(nodes, allowed=True, clock=clock)
    watch.expect(KEY, {"n1"})
    assert watch.reported("n1", ready=True) == []
    assert watch.reported("n1", ready=False) == [KEY]
    assert watch.reported("n1", ready=False) == []
    nodes.ready = False
    clock.now += 7
    assert (await watch.look(KEY, [], []))["n1"].not_ready_seconds == 7
    nodes.ready = True
    assert watch.reported("n1", ready=True) == [KEY]
    assert (await watch.look(KEY, ["n1"], []))["n1"].not_ready_seconds == 0


async def test_a_node_that_is_gone_is_distinguished_from_one_that_is_not_ready() -> None:
    nodes = Nodes()
    nodes.exists = False
    found = (await NodeWatch(nodes, allowed=True).look(KEY, ["n1"], []))["n1"]
    assert (found.exists, found.ready) == (False, False)


class CountedNodes(Nodes):
    """Which nodes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def node(self, name: str) -> dict[str, Any] | None:
        self.read.append(name)
        return await super().node(name)


async def test_a_job_reads_only_those_unready_nodes_that_it_has_pods_on() -> None:
    nodes = CountedNodes()
    watch = NodeWatch(nodes, allowed=True)
    nodes.ready = False
    for number in range(100):
        watch.reported(f"n{number}", ready=False)
    watch.expect(KEY, {"n1", "healthy"})
    assert set(await watch.look(KEY, [], [])) == {"n1"}
    assert nodes.read == ["n1"]


async def test_each_job_sees_that_its_node_was_deleted_and_then_it_is_forgotten() -> None:
    nodes, other = CountedNodes(), ("default", "other")
    watch = NodeWatch(nodes, allowed=True)
    nodes.exists = False
    for key in (KEY, other):
        watch.expect(key, {"n1"})
    assert watch.deleted("n1") == [KEY, other]
    for key in (KEY, other, KEY):
        assert not (await watch.look(key, [], []))["n1"].exists, "the first must not hide it"
    watch.expect(KEY, set())
    assert await watch.look(KEY, [], []) == {}
    watch.expect(other, set())
    watch.expect(KEY, {"n1"})
    assert await watch.look(KEY, [], []) == {}, "nothing is kept of nodes that are gone"
    assert watch.deleted("unknown") == []
    assert watch.reported("unknown", ready=True) == []


async def test_without_the_right_to_read_nodes_nothing_is_known() -> None:
    assert await NodeWatch(Nodes(), allowed=False).look(KEY, ["n1"], []) == {}
