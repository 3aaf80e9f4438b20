"""Quotas and nodes as values."""

from __future__ import annotations

import pytest

from regroup.kubernetes.pod_record import amount, read_node, read_quota


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("4", 4), (4, 4), ("500m", 0.5), ("1k", 1000), ("2Gi", 2 << 30), ("1e3", 1000), ("x", 0)],
)
def test_quantities(quantity: object, number: float) -> None:
    assert amount(quantity) == pytest.approx(number)


def test_a_quota_names_what_is_used_up() -> None:
    hard = {"pods": "10", "requests.memory": "1Gi", "requests.cpu": "4"}
    used = {"pods": "3", "requests.memory": "1024Mi"}
    quota = read_quota({"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}})
    assert quota.used_up == ("requests.memory 1024Mi of 1Gi",)


def test_a_node_that_takes_no_pods() -> None:
    conditions = [
        {"type": "Ready", "status": "Unknown", "message": "no heartbeat"},
        {"type": "DiskPressure", "status": "True"},
        {"type": "MemoryPressure", "status": "False"},
        {"type": "PIDPressure", "status": "Unknown", "message": "Kubelet stopped posting"},
    ]
    node = read_node(
        {
            "metadata": {"name": "n1"},
            "spec": {"unschedulable": True},
            "status": {"conditions": conditions},
        }
    )
    problems = ("it is not Ready (no heartbeat)", "it has DiskPressure", "it is cordoned")
    assert node.problems == problems
    assert read_node({}).problems == ()
