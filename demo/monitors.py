"""Monitors of the Prometheus operator as a configuration of Prometheus, as that operator writes it.

So the demo and the tests scrape with the settings of the chart's own PodMonitor and ServiceMonitor.
What these use is known here. Any other field is refused: left out, it would change what is scraped
without a word. Of the operator's configuration, only the rules that share targets out between
several Prometheus are missing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.errors import MonitorError

Json = dict[str, Any]
META = "__meta_kubernetes_"
"""What the names of labels begin with that service discovery gives a target."""
LIMITS = {
    "sampleLimit": "sample_limit",
    "labelLimit": "label_limit",
    "labelNameLengthLimit": "label_name_length_limit",
    "labelValueLengthLimit": "label_value_length_limit",
    "bodySizeLimit": "body_size_limit",
}
RULE_FIELDS = {"sourceLabels": "source_labels", "targetLabel": "target_label"} | {
    name: name for name in ("action", "modulus", "regex", "replacement", "separator")
}
ENDPOINT_FIELDS = {"port", "interval", "honorLabels", "relabelings", "metricRelabelings"}
RUNNING = {"action": "drop", "source_labels": [f"{META}pod_phase"], "regex": "(Failed|Succeeded)"}
JOB_NAME = {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"}


@dataclass(frozen=True)
class Kind:
    """What differs between the two kinds of monitors."""

    name: str
    role: str
    """Of service discovery."""
    endpoints: str
    """The field of the spec that lists the endpoints."""
    selects: str
    """What has the labels that the selector is about."""
    port: str
    """The label with the name of a target's port."""


KINDS = {
    "PodMonitor": Kind(
        "podMonitor", "pod", "podMetricsEndpoints", "pod", f"{META}pod_container_port_name"
    ),
    "ServiceMonitor": Kind(
        "serviceMonitor", "endpoints", "endpoints", "service", f"{META}endpoint_port_name"
    ),
}


def scrape_configs(monitors: Iterable[Json]) -> list[Json]:
    """A job of Prometheus for each endpoint of the monitors. Raises MonitorError for a field that
    is not known here.
    """
    return [
        scrape_config(monitor, number)
        for monitor in monitors
        for number in range(len(monitor["spec"][KINDS[monitor["kind"]].endpoints]))
    ]


def scrape_config(monitor: Json, number: int) -> Json:
    """The job of one endpoint of a monitor."""
    kind, spec, metadata = KINDS[monitor["kind"]], monitor["spec"], monitor["metadata"]
    endpoint = spec[kind.endpoints][number]
    known = {kind.endpoints, "selector", "namespaceSelector", *LIMITS}
    refuse_unknown(f"{monitor['kind']} {metadata['name']}: spec", spec, known)
    refuse_unknown(f"{monitor['kind']} {metadata['name']}: endpoint", endpoint, ENDPOINT_FIELDS)
    config = {
        "job_name": f"{kind.name}/{metadata['namespace']}/{metadata['name']}/{number}",
        "honor_labels": endpoint.get("honorLabels", False),
        "kubernetes_sd_configs": [discovery(kind, spec, metadata["namespace"])],
        "relabel_configs": [*relabelings(kind, monitor, endpoint)],
    }
    if "interval" in endpoint:
        config["scrape_interval"] = endpoint["interval"]
    if made := [rule(one) for one in endpoint.get("metricRelabelings", ())]:
        config["metric_relabel_configs"] = made
    return config | {LIMITS[name]: value for name, value in spec.items() if name in LIMITS}


def refuse_unknown(what: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise MonitorError if there is a field that is not known."""
    if unknown := sorted(set(given) - set(known)):
        raise MonitorError(f"{what} has {', '.join(unknown)}: add it to demo/monitors.py")


def discovery(kind: Kind, spec: Json, namespace: str) -> Json:
    """Where targets are looked for: the monitor's own namespace, unless it selects others."""
    chosen = spec.get("namespaceSelector", {})
    if chosen.get("any"):
        return {"role": kind.role}
    names = chosen.get("matchNames") or [namespace]
    return {"role": kind.role, "namespaces": {"names": names}}


def relabelings(kind: Kind, monitor: Json, endpoint: Json) -> Iterator[Json]:
    """The rules that choose targets and name them. Those of the endpoint come last."""
    is_pods = kind.role == "pod"
    yield JOB_NAME
    if is_pods:
        yield RUNNING
    yield from selected(kind, monitor["spec"]["selector"])
    yield {"action": "keep", "source_labels": [kind.port], "regex": endpoint["port"]}
    yield from names_of_pods() if is_pods else names_of_services()
    if is_pods:
        metadata = monitor["metadata"]
        yield set_label("job", f"{metadata['namespace']}/{metadata['name']}")
    else:
        yield RUNNING
        yield {**copied("service_name", "job"), "replacement": "${1}"}
    yield set_label("endpoint", endpoint["port"])
    yield from map(rule, endpoint.get("relabelings", ()))


def selected(kind: Kind, selector: Json) -> Iterator[Json]:
    """The rules that keep what a selector of labels chooses."""
    refuse_unknown("the selector", selector, ("matchLabels", "matchExpressions"))
    prefix = f"{META}{kind.selects}_label"
    for name, value in sorted(selector.get("matchLabels", {}).items()):
        source = [f"{prefix}_{sanitized(name)}", f"{prefix}present_{sanitized(name)}"]
        yield {"action": "keep", "source_labels": source, "regex": f"({value});true"}
    for one in selector.get("matchExpressions", ()):
        if one["operator"] != "Exists":
            raise MonitorError(f"a selector has {one['operator']}: add it to demo/monitors.py")
        source = [f"{prefix}present_{sanitized(one['key'])}"]
        yield {"action": "keep", "source_labels": source, "regex": "true"}


def names_of_pods() -> Iterator[Json]:
    """The labels that say which pod a series is from."""
    yield copied("namespace", "namespace")
    yield copied("pod_container_name", "container")
    yield copied("pod_name", "pod")


def names_of_services() -> Iterator[Json]:
    """The labels that say which pod and Service a series is from."""
    for what in ("Node", "Pod"):
        yield {
            "source_labels": [
                f"{META}endpoint_address_target_kind",
                f"{META}endpoint_address_target_name",
            ],
            "separator": ";",
            "regex": f"{what};(.*)",
            "replacement": "${1}",
            "target_label": what.lower(),
        }
    yield copied("namespace", "namespace")
    yield copied("service_name", "service")
    yield copied("pod_name", "pod")
    yield copied("pod_container_name", "container")


def copied(meta: str, label: str) -> Json:
    """A rule that copies a label of service discovery."""
    return {"source_labels": [f"{META}{meta}"], "target_label": label}


def set_label(label: str, value: str) -> Json:
    """A rule that gives all targets a label."""
    return {"target_label": label, "replacement": value}


def rule(given: Json) -> Json:
    """A rule of a monitor, as Prometheus writes it."""
    refuse_unknown("a relabeling", given, RULE_FIELDS)
    made = {RULE_FIELDS[name]: value for name, value in given.items()}
    return made | ({"action": made["action"].lower()} if "action" in made else {})


def sanitized(name: str) -> str:
    """The name of a Kubernetes label as a part of that of a Prometheus label."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def from_files(config: Json, folder: Path) -> Json:
    """A job whose targets are in the files that `demo.targets` writes, one for each role.

    The files have the targets of all namespaces: a rule chooses instead of the discovery.
    """
    rest = {name: value for name, value in config.items() if name != "kubernetes_sd_configs"}
    (found,) = config["kubernetes_sd_configs"]
    rules = config["relabel_configs"]
    if names := found.get("namespaces", {}).get("names"):
        source = [f"{META}namespace"]
        rules = [{"action": "keep", "source_labels": source, "regex": "|".join(names)}, *rules]
    files = {"files": [str(folder / f"{found['role']}.json")]}
    return {**rest, "file_sd_configs": [files], "relabel_configs": rules}
