"""The targets that Prometheus is given, as service discovery through Kubernetes would find them."""

from __future__ import annotations

from typing import Any

from demo.targets import Route, endpoint_targets, pod_targets

Json = dict[str, Any]
OPERATOR = {"app.kubernetes.io/name": "regroup"}


def make_pod(
    labels: dict[str, str] | None = None,
    *,
    name: str = "gpt-w0-1",
    phase: str = "Running",
    ip: str = "198.18.1.2",
) -> Json:
    ports = [{"name": "metrics", "containerPort": 8472}, {"containerPort": 9000}]
    return {
        "metadata": {"name": name, "namespace": "demo", "labels": labels or {}},
        "spec": {"containers": [{"name": "trainer", "ports": ports}, {"name": "sidecar"}]},
        "status": {"phase": phase, "podIP": ip},
    }


def make_service(**changes: Any) -> Json:
    port = {"name": "metrics", "port": 80, "targetPort": "metrics"}
    metadata = {"name": "regroup-metrics", "namespace": "demo", "labels": {"app": "regroup"}}
    return {"metadata": metadata, "spec": {"selector": OPERATOR, "ports": [port], **changes}}


def test_each_port_of_a_pod_is_a_target_with_the_labels_of_the_pod() -> None:
    labels = {"regroup.dev/job": "gpt"}
    found, unnamed = pod_targets([make_pod(labels)], Route())
    assert found == {
        "targets": ["198.18.1.2:8472"],
        "labels": {
            "__meta_kubernetes_namespace": "demo",
            "__meta_kubernetes_pod_name": "gpt-w0-1",
            "__meta_kubernetes_pod_ip": "198.18.1.2",
            "__meta_kubernetes_pod_phase": "Running",
            "__meta_kubernetes_pod_container_name": "trainer",
            "__meta_kubernetes_pod_container_port_name": "metrics",
            "__meta_kubernetes_pod_container_port_number": "8472",
            "__meta_kubernetes_pod_label_regroup_dev_job": "gpt",
            "__meta_kubernetes_pod_labelpresent_regroup_dev_job": "true",
        },
    }
    assert unnamed["labels"]["__meta_kubernetes_pod_container_port_name"] == ""


def test_a_pod_without_an_address_is_no_target() -> None:
    pod = make_pod(OPERATOR, ip="")
    assert pod_targets([pod], Route()) == []
    assert endpoint_targets([make_service()], [pod], Route()) == []


def test_a_service_has_its_running_pods_with_the_labels_of_both() -> None:
    others = [make_pod({"app": "other"}), make_pod(OPERATOR, phase="Succeeded")]
    (found,) = endpoint_targets([make_service()], [make_pod(OPERATOR), *others], Route())
    assert found["targets"] == ["198.18.1.2:8472"]
    shown = {name.removeprefix("__meta_kubernetes_"): v for name, v in found["labels"].items()}
    assert shown["service_name"] == "regroup-metrics"
    assert shown["endpoint_port_name"] == "metrics"
    assert (shown["service_label_app"], shown["service_labelpresent_app"]) == ("regroup", "true")
    assert shown["pod_name"] == "gpt-w0-1"


def test_a_service_that_selects_nothing_or_is_elsewhere_has_no_pods() -> None:
    elsewhere = make_service()
    elsewhere["metadata"] = {**elsewhere["metadata"], "namespace": "other"}
    services = [make_service(selector={}), elsewhere]
    assert endpoint_targets(services, [make_pod(OPERATOR)], Route()) == []


def test_a_port_of_a_service_may_be_a_number() -> None:
    service = make_service(ports=[{"name": "raw", "port": 80, "targetPort": 9000}])
    (found,) = endpoint_targets([service], [make_pod(OPERATOR)], Route())
    assert found["targets"] == ["198.18.1.2:9000"]


def test_through_the_api_server_the_pod_is_part_of_the_path() -> None:
    found = pod_targets([make_pod()], Route("127.0.0.1:8001"))[0]
    assert found["targets"] == ["127.0.0.1:8001"]
    path = "/api/v1/namespaces/demo/pods/gpt-w0-1:8472/proxy/metrics"
    assert found["labels"]["__metrics_path__"] == path
    assert found["labels"]["instance"] == "198.18.1.2:8472"
