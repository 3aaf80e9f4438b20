"""A power cut of all nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devcluster import cgroups
from soak.aim import Missed
from soak.node_faults import all_nodes_power_cut
from tests.support.soak_site import FakeJob, FakeNode, FakeSite, aim

NAMES = ("n1", "n2", "n3")
CUT = [f"{what} {name}" for what in ("partition", "kill") for name in NAMES]
START = [f"start {name}" for name in NAMES]


class Powered(FakeSite):
    """Three nodes with a process each. `survivors` outlive the power cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *survivors: str) -> None:
        self.done: list[str] = []
        self.looks = 0
        running = {f"regroup/soak/{name}": {7} for name in NAMES}

        def node(name: str) -> FakeNode:
            group = f"regroup/soak/{name}"
            ends = running[group].clear if name not in survivors else lambda: None
            return FakeNode(name, self.done, ends)

        nodes = {name: node(name) for name in NAMES}
        super().__init__(SimpleNamespace(nodes=nodes.values(), node=nodes.__getitem__))
        monkeypatch.setattr(cgroups, "processes", running.__getitem__)

    def is_back(self, _node: str, _moment: float) -> bool:
        """From the second look on."""
        self.looks += 1
        return self.looks > 1

    def operates(self) -> bool:
        """From the second look on, which comes later."""
        self.looks += 1
        return self.looks > 5


def test_no_node_tells_anybody_of_the_power_cut_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Powered(monkeypatch)
    struck = all_nodes_power_cut(aim(site, FakeJob()))
    assert (site.done, struck.nodes) == (CUT, NAMES)
    assert struck.proof == "n1, n2, n3 run no process and their links are down"


def test_the_power_is_back_when_kubelets_renewed_leases_and_an_operator_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Powered(monkeypatch)
    all_nodes_power_cut(aim(site, FakeJob())).undo()
    assert site.done == CUT + START
    assert site.looks == 9, "one in vain, then twice one for each node and one for the operator"


def test_a_node_that_runs_on_makes_the_fault_missed_and_all_are_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Powered(monkeypatch, "n2")
    with pytest.raises(Missed, match=r"\['n2'\] still ran processes"):
        all_nodes_power_cut(aim(site, FakeJob()))
    assert site.done == CUT + START
