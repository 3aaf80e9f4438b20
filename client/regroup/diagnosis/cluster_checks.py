"""What `doctor` makes of a cluster: one finding for each thing that a first job needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from regroup.kubernetes.cluster_errors import NOT_FOUND, ClusterError
from regroup.kubernetes.job_record import time_of
from regroup.kubernetes.pod_record import amount
from regroup.kubernetes.quantities import age
from regroup.kubernetes.text_tables import paragraph
from regroup_operator.api.resource import GROUP, Object

State = Literal["ok", "warn", "fail"]
OLDEST_MINOR = 30
"""Of Kubernetes 1."""
RENEWED_SECONDS = 60.0
"""An operator that has not renewed its Lease for so long is away."""
MONITORING, QUEUEING = "monitoring.coreos.com", "kueue.x-k8s.io"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
NEEDED = (
    ("create", "trainingjobs"), ("get", "trainingjobs"), ("list", "trainingjobs"),
    ("watch", "trainingjobs"), ("patch", "trainingjobs"), ("list", "pods"), ("get", "pods/log"),
)  # fmt: skip
"""Rights without which one cannot work."""
USEFUL: Mapping[tuple[str, str], str] = {
    ("delete", "trainingjobs"): "to remove jobs",
    ("patch", "trainingjobs/scale"): "`scale`",
    ("list", "events"): "`describe`, `why`",
    ("get", "pods/exec"): "`debug`, `simulate-failure --rank`",
    ("create", "pods/exec"): "`debug`, `simulate-failure --rank`",
    ("get", "pods/portforward"): "live `top`",
    ("delete", "pods"): "`simulate-failure`",
}
"""Right -> the verbs that lack something without it."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    state: State
    found: str
    do: str = ""
    """What to do about it; empty where there is nothing to do."""


@dataclass(frozen=True)
class Selection:
    """The monitors of one kind that the chart has made, and who selects them."""

    what: str
    value: str
    """The value of the chart that makes them."""
    ours: Sequence[Monitor] | None
    """None: they may not be read."""
    selectors: Sequence[MonitorSelector]
    """Of each Prometheus."""
    gap: ClusterError | None = None
    """Why these could not be read."""


@dataclass(frozen=True)
class Monitor:
    """An object that the chart has made."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] | None
    """Of its namespace; None: they may not be read."""


@dataclass(frozen=True)
class MonitorSelector:
    """Which objects of one kind a Prometheus wants, by their labels and those of namespaces."""

    namespace: str
    """Of the Prometheus."""
    objects: Object | None
    """None: it selects nothing."""
    namespaces: Object | None
    """None: its own namespace alone."""


def version(text: str) -> Finding:
    """The version of Kubernetes, as v1.30.2."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    if found is None:
        return Finding("Kubernetes", "warn", f"version {text!r} cannot be read")
    if (int(found[1]), int(found[2])) < (1, OLDEST_MINOR):
        advice = f"upgrade the cluster to 1.{OLDEST_MINOR} or newer"
        return Finding("Kubernetes", "fail", text, advice)
    return Finding("Kubernetes", "ok", text)


def definition(groups: Iterable[str]) -> Finding:
    """Whether the cluster knows TrainingJobs."""
    if GROUP in groups:
        return Finding("TrainingJobs", "ok", "the cluster knows them")
    advice = "install Regroup: helm install regroup charts/regroup"
    return Finding("TrainingJobs", "fail", "the cluster does not know them", advice)


def operator(lease: Object | None, gap: ClusterError | None, now: datetime) -> Finding:
    """Whether an operator is at work, by its Lease. `gap`: why that could not be read. Without one,
    no operator has ever been at work there.
    """
    if lease is None:
        advice = "give its namespace by --operator-namespace, and look at its pods there"
        state: State = "fail" if gap is not None and gap.status == NOT_FOUND else "warn"
        return Finding("operator", state, f"its Lease could not be read: {gap}", advice)
    spec = lease.get("spec") or {}
    renewed, holder = time_of(spec.get("renewTime")), str(spec.get("holderIdentity") or "nobody")
    if renewed is None or (now - renewed).total_seconds() > RENEWED_SECONDS:
        advice = "look at the operator's pods: jobs train on, but nothing is repaired"
        return Finding("operator", "fail", f"its Lease was renewed {age(renewed, now)} ago", advice)
    return Finding("operator", "ok", f"{holder} is at work")


def rights(namespace: str, allowed: Mapping[tuple[str, str], bool]) -> Finding:
    """What the caller may do."""
    missing = [f"{verb} {what}" for verb, what in NEEDED if not allowed[verb, what]]
    lacking = [
        f"{verb} {what} ({use})" for (verb, what), use in USEFUL.items() if not allowed[verb, what]
    ]
    where = f"in namespace {namespace}"
    advice = "ask an administrator for the role edit of the namespace (docs/security.md)"
    if missing:
        return Finding("your rights", "fail", f"you may not {', '.join(missing)} {where}", advice)
    if lacking:
        return Finding("your rights", "warn", f"you may not {', '.join(lacking)} {where}", advice)
    return Finding("your rights", "ok", f"all that the verbs need {where}")


def gpus(nodes: Sequence[Object] | None) -> Finding:
    """The GPUs that nodes offer. None: they may not be read."""
    if nodes is None:
        return Finding("GPUs", "warn", "your role may not list nodes", "ask whoever may")
    ready = {name: [_allocatable(node, name) for node in nodes] for name in GPUS}
    shown = [
        f"{sum(counts):.0f} {name} on {sum(map(bool, counts))} of {len(nodes)} nodes"
        for name, counts in ready.items()
        if any(counts)
    ]
    if shown:
        return Finding("GPUs", "ok", ", ".join(shown))
    advice = "install NVIDIA's GPU operator or its device plugin; jobs without GPUs need neither"
    return Finding("GPUs", "warn", f"none of {len(nodes)} nodes offers any", advice)


def _allocatable(node: Object, name: str) -> float:
    return amount(((node.get("status") or {}).get("allocatable") or {}).get(name, 0))


def no_monitoring() -> Finding:
    """Of a cluster without the Prometheus operator."""
    found = "the cluster has no Prometheus operator"
    advice = "have your Prometheus scrape the pods, and load the rules of charts/regroup/alerts"
    return Finding("Prometheus", "warn", found, advice)


def monitoring(selection: Selection) -> Finding:
    """Whether a Prometheus selects the chart's objects, by labels and namespaces."""
    check = f"Prometheus: {selection.what}s"
    if selection.ours is None:
        return Finding(check, "warn", "your role may not read them", "ask whoever may")
    if not selection.ours:
        advice = f"helm upgrade ... --set {selection.value}.enabled=true"
        return Finding(check, "warn", "the chart has made none", advice)
    if selection.gap is not None:
        found = f"unknown whether a Prometheus selects them: {selection.gap}"
        return Finding(check, "warn", found, "ask whoever may list prometheuses")
    if not selection.selectors:
        found = "no Prometheus was found that could select them"
        return Finding(check, "warn", found, "install one, or ask whether it is elsewhere")
    for monitor in selection.ours:
        verdicts = [_selects(selector, monitor) for selector in selection.selectors]
        if True in verdicts:
            continue
        wanted = ", ".join(_wanted(s) for s in selection.selectors if s.objects is not None)
        if None in verdicts:
            found = f"unknown whether a Prometheus selects them: it wants [{wanted}]"
            return Finding(check, "warn", found, "ask whoever may read the labels of namespaces")
        found = f"no Prometheus selects them: it wants [{wanted}]"
        advice = f"give them its labels: helm upgrade ... --set {selection.value}.labels.KEY=..."
        return Finding(check, "fail", found, advice)
    return Finding(check, "ok", f"selected: {len(selection.ours)}")


def _wanted(selector: MonitorSelector) -> str:
    objects = selector.objects or {}
    labels = objects if objects.get("matchExpressions") else objects.get("matchLabels") or {}
    if selector.namespaces is None:
        return f"{labels} in its own namespace {selector.namespace}"
    chosen = any(selector.namespaces.values())
    return f"{labels} in namespaces {selector.namespaces}" if chosen else str(labels)


def _selects(selector: MonitorSelector, monitor: Monitor) -> bool | None:
    """None: unknown."""
    if selector.objects is None:
        return False
    by_labels = _matches(selector.objects, monitor.labels)
    if selector.namespaces is None:
        by_namespace: bool | None = selector.namespace == monitor.namespace
    elif not any(selector.namespaces.values()):
        by_namespace = True
    elif monitor.namespace_labels is None:
        by_namespace = None
    else:
        by_namespace = _matches(selector.namespaces, monitor.namespace_labels)
    return _both(by_labels, by_namespace)


def _matches(selector: Object, labels: Mapping[str, str]) -> bool | None:
    """Whether a label selector of Kubernetes takes these labels; None: it cannot be read."""
    wanted = selector.get("matchLabels") or {}
    found: bool | None = all(labels.get(key) == value for key, value in wanted.items())
    for expression in selector.get("matchExpressions") or ():
        found = _both(found, _holds(expression, labels))
    return found


def _holds(expression: Object, labels: Mapping[str, str]) -> bool | None:
    key, values = expression.get("key"), expression.get("values") or ()
    value = labels.get(str(key))
    by_operator = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return by_operator.get(str(expression.get("operator")))


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Both hold; None: unknown."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def queueing(groups: Iterable[str]) -> Finding:
    """Kueue."""
    if QUEUEING not in groups:
        return Finding("Kueue", "ok", "not installed, and not needed")
    advice = "leave out spec.scheduling.queueName; a ResourceQuota bounds a namespace"
    return Finding("Kueue", "warn", "installed; this release cannot queue jobs by it yet", advice)


def claim(name: str, document: Object | None, gap: ClusterError | None) -> Finding:
    """The claim for checkpoints. `gap`: why it could not be read."""
    check = f"claim {name}"
    if document is None:
        advice = "create it with accessModes: [ReadWriteMany]"
        return Finding(check, "fail", f"it could not be read: {gap}", advice)
    modes = (document.get("spec") or {}).get("accessModes") or []
    if "ReadWriteMany" not in modes:
        advice = "several workers need ReadWriteMany: choose a StorageClass that has it (NFS, ...)"
        return Finding(check, "fail", f"it is {', '.join(map(str, modes))}", advice)
    return Finding(check, "ok", "ReadWriteMany")


def no_claim() -> Finding:
    """Where nobody has named which storage to check."""
    advice = "give --claim NAME: a ReadWriteMany claim of this namespace"
    return Finding("storage", "warn", "not checked", advice)


def report_lines(findings: Sequence[Finding], width: int) -> list[str]:
    """The report as text."""
    lines = []
    for finding in findings:
        head = f"{finding.state.upper():4}  "
        lines += paragraph(f"{finding.check}: {finding.found}", width, "      ", head)
        if finding.do:
            lines += paragraph(finding.do, width, "        ", "      do: ")
    return lines


def exit_code(findings: Iterable[Finding]) -> int:
    """1 where something fails."""
    return int(any(finding.state == "fail" for finding in findings))
