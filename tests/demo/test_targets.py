"""Which pods Prometheus is configured to scrape, and how they are reached."""

from __future__ import annotations

from typing import Any

from demo.targets import Route, targets

Json = dict[str, Any]


def make_pod(
    labels: dict[str, str], *, phase: str = "Running", port: str = "metrics", ip: str = "198.18.1.2"
) -> Json:
    return {
        "metadata": {"name": "gpt-w0-1", "namespace": "demo", "labels": labels},
        "spec": {
            "containers": [{"ports": [{"name": port, "containerPort": 8472}, {"name": "other"}]}]
        },
        "status": {"phase": phase, "podIP": ip},
    }


WORKER = {"regroup.dev/role": "worker"}


def test_workers_coordinators_and_the_operator_are_scraped() -> None:
    pods = [
        make_pod(WORKER),
        make_pod({"regroup.dev/role": "coordinator"}, port="status"),
        make_pod({"app.kubernetes.io/part-of": "regroup"}),
    ]
    assert [one["targets"] for one in targets(pods, Route())] == [["198.18.1.2:8472"]] * 3


def test_other_pods_and_those_that_do_not_run_are_not() -> None:
    pods = [
        make_pod({"app": "other"}),
        make_pod(WORKER, phase="Succeeded"),
        make_pod(WORKER, ip=""),
    ]
    assert targets(pods, Route()) == []


def test_through_the_api_server_the_pod_is_part_of_the_path() -> None:
    (found,) = targets([make_pod(WORKER)], Route("127.0.0.1:8001"))
    assert found["targets"] == ["127.0.0.1:8001"]
    path = "/api/v1/namespaces/demo/pods/gpt-w0-1:8472/proxy/metrics"
    assert found["labels"] == {
        "pod": "gpt-w0-1",
        "namespace": "demo",
        "__metrics_path__": path,
    }
