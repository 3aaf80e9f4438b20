"""Monitors become the configuration that the Prometheus operator makes of them: its own tests say
which.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.errors import MonitorError
from demo.monitors import from_files, scrape_configs
from demo.prometheus import monitored_by
from tests.support.chart import render
from tests.support.prometheus_operator import expected_configuration
from tests.support.promtool import promtool

Json = dict[str, Any]
CADVISOR = (
    "container_(network_tcp_usage_total|network_udp_usage_total|tasks_state|cpu_load_average_10s)"
)
GROUP = {"matchLabels": {"group": "group1"}}
WEB: Json = {"port": "web", "interval": "30s"}


def pod_monitor(name: str = "gpt", *, endpoint: Json | None = None, **spec: Any) -> Json:
    made = {"selector": {}, "podMetricsEndpoints": [{**WEB, **(endpoint or {})}], **spec}
    return monitor("PodMonitor", name, made)


def service_monitor(name: str = "gpt", *, endpoint: Json | None = None, **spec: Any) -> Json:
    made = {"selector": {}, "endpoints": [{**WEB, **(endpoint or {})}], **spec}
    return monitor("ServiceMonitor", name, made)


def monitor(kind: str, name: str, spec: Json) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def crio() -> Json:
    """The endpoint with rules of its own in TestNoEnforcedNamespaceLabelServiceMonitor."""
    address = {"sourceLabels": ["__address__"], "targetLabel": "__address__"}
    dropped = {"action": "Drop", "regex": CADVISOR, "sourceLabels": ["__name__"]}
    return {
        "port": "https-metrics",
        "honorLabels": True,
        "metricRelabelings": [dropped],
        "relabelings": [
            {**address, "action": "replace", "regex": "(.+)(?::d+)", "replacement": "$1:9537"},
            {"action": "replace", "replacement": "crio", "targetLabel": "job"},
        ],
    }


@pytest.mark.parametrize(
    ("monitor", "golden"),
    [
        (
            pod_monitor("defaultPodMonitor", selector=GROUP),
            "monitorObjectWithoutScrapeClass",
        ),
        (
            service_monitor("defaultServiceMonitor", selector=GROUP),
            "monitorObjectWithoutScrapeClass",
        ),
        (
            service_monitor("test", endpoint=crio(), selector={"matchLabels": {"foo": "bar"}}),
            "NoEnforcedNamespaceLabelServiceMonitor_Expected",
        ),
    ],
    ids=["PodMonitor", "ServiceMonitor", "rules of its own"],
)
def test_a_monitor_becomes_what_the_prometheus_operator_makes_of_it(
    monitor: Json, golden: str
) -> None:
    (made,) = scrape_configs([monitor])
    assert made == expected_configuration(golden)[made["job_name"]]


def test_a_limit_has_the_name_that_prometheus_gives_it() -> None:
    (limited,) = scrape_configs([pod_monitor(labelLimit=500, bodySizeLimit="16MB")])
    expected = expected_configuration("LabelLimits_Limit500_v2.27.0_enforceLimit1000")
    (theirs,) = expected.values()
    assert limited["label_limit"] == theirs["label_limit"]
    assert limited["body_size_limit"] == "16MB"


@pytest.mark.parametrize(
    ("monitor", "named"),
    [
        (pod_monitor(targetLimit=3), "targetLimit"),
        (pod_monitor(endpoint={"path": "/m"}), "path"),
        (pod_monitor(endpoint={"relabelings": [{"sourceLabel": "a"}]}), "sourceLabel"),
        (pod_monitor(selector={"matchLabel": {}}), "matchLabel"),
        (pod_monitor(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}), "In"),
    ],
)
def test_a_field_that_is_not_known_is_refused(monitor: Json, named: str) -> None:
    with pytest.raises(MonitorError, match=rf"\b{named}: add it to demo/monitors.py"):
        scrape_configs([monitor])


@pytest.mark.parametrize(
    ("selector", "regex"),
    [({"any": True}, None), ({"matchNames": ["a", "b"]}, "a|b"), ({}, "default")],
)
def test_only_targets_of_the_chosen_namespaces_are_taken_from_files(
    selector: Json, regex: str | None
) -> None:
    (config,) = scrape_configs([pod_monitor(namespaceSelector=selector)])
    made = from_files(config, Path("/targets"))
    assert made["file_sd_configs"] == [{"files": ["/targets/pod.json"]}]
    assert "kubernetes_sd_configs" not in made
    first = made["relabel_configs"][0]
    if regex is None:
        assert first == config["relabel_configs"][0]
    else:
        assert (first["action"], first["regex"]) == ("keep", regex)
        assert first["source_labels"] == ["__meta_kubernetes_namespace"]


def test_promtool_takes_what_the_charts_monitors_become(tmp_path: Path) -> None:
    objects = render(
        "metrics.serviceMonitor.enabled=true",
        "metrics.podMonitor.enabled=true",
        'watch.namespaces=["team", "vision"]',
    )
    monitors = [one for (kind, _), one in objects.items() if kind.endswith("Monitor")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(monitored_by(monitors, tmp_path)))
    promtool("check", "config", tmp_path / "prometheus.yml")
