"""Reads what `doctor` checks. What may not be read is a finding, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from regroup.diagnosis import cluster_checks as checks
from regroup.diagnosis.cluster_checks import Finding, Monitor, MonitorSelector, Selection
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.scene import LEASE
from regroup_operator.api.resource import Object

T = TypeVar("T")
_PART = "app.kubernetes.io/part-of=regroup"
"""Label of what the chart makes."""


def survey(api: ClusterApi, namespace: str, operators: str) -> list[Finding]:
    """All findings but those about storage. `operators`: the namespace of the operator. Raises
    ClusterError when nothing can be read.
    """
    groups = api.groups()
    lease, gap = _try(lambda: api.lease(operators, LEASE))
    nodes, _ = _try(api.nodes)
    asked = (*checks.NEEDED, *checks.USEFUL)
    return [
        checks.version(api.server_version()),
        checks.definition(groups),
        checks.operator(lease, gap, api.now()),
        checks.rights(namespace, {right: api.may(namespace, *right) for right in asked}),
        checks.gpus(nodes),
        *_monitoring(api, groups),
        checks.queueing(groups),
    ]


def read_claim(api: ClusterApi, namespace: str, name: str) -> Finding:
    """The claim itself."""
    return checks.claim(name, *_try(lambda: api.claim(namespace, name)))


def _monitoring(api: ClusterApi, groups: list[str]) -> list[Finding]:
    if checks.MONITORING not in groups:
        return [checks.no_monitoring()]
    prometheuses, gap = _try(lambda: api.monitoring_objects("prometheuses"))
    kinds = {
        "podmonitors": ("PodMonitor", "metrics.podMonitor", "podMonitorSelector"),
        "servicemonitors": ("ServiceMonitor", "metrics.serviceMonitor", "serviceMonitorSelector"),
        "prometheusrules": ("PrometheusRule", "metrics.prometheusRule", "ruleSelector"),
    }
    return [
        checks.monitoring(
            Selection(
                what,
                value,
                _monitors(api, _try(partial(api.monitoring_objects, plural, _PART))[0]),
                [_selector(prometheus, selector) for prometheus in prometheuses or ()],
                gap,
            )
        )
        for plural, (what, value, selector) in kinds.items()
    ]


def _selector(prometheus: Object, objects: str) -> MonitorSelector:
    """What it selects of one kind; `objects`: the field that says by which labels."""
    spec = prometheus.get("spec") or {}
    namespaces = objects.replace("Selector", "NamespaceSelector")
    return MonitorSelector(_namespace(prometheus), spec.get(objects), spec.get(namespaces))


def _monitors(api: ClusterApi, found: list[Object] | None) -> list[Monitor] | None:
    if found is None:
        return None
    spaces = {name: _try(partial(api.namespace, name))[0] for name in map(_namespace, found)}
    return [
        Monitor(space, _labels(document), None if read is None else _labels(read))
        for document in found
        for space in (_namespace(document),)
        for read in (spaces[space],)
    ]


def _namespace(document: Object) -> str:
    return str((document.get("metadata") or {}).get("namespace") or "")


def _labels(document: Object) -> dict[str, str]:
    return (document.get("metadata") or {}).get("labels") or {}


def _try(read: Callable[[], T]) -> tuple[T | None, ClusterError | None]:
    """What could be read, or why not."""
    try:
        return read(), None
    except ClusterError as error:
        return None, error
