"""What `doctor` makes of what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from regroup.diagnosis import cluster_checks as checks
from regroup.diagnosis.cluster_checks import Finding, Monitor, MonitorSelector, Selection
from regroup.kubernetes.cluster_errors import ClusterError
from tests.support.cluster_objects import NOW, at

Json = dict[str, object]


@pytest.mark.parametrize(
    ("text", "state"),
    [("v1.30.2", "ok"), ("v1.33.0+k3s1", "ok"), ("v1.29.9", "fail"), ("unknown", "warn")],
)
def test_the_version_of_kubernetes(text: str, state: str) -> None:
    assert checks.version(text).state == state


def test_a_cluster_that_knows_no_training_jobs() -> None:
    assert checks.definition(["apps", "regroup.dev"]).state == "ok"
    assert "helm install" in checks.definition(["apps"]).do


def test_an_operator_is_at_work_while_it_renews_its_lease() -> None:
    def lease(ago: float) -> Json:
        return {"spec": {"holderIdentity": "regroup-1", "renewTime": at(ago)}}

    assert checks.operator(lease(5), None, NOW) == Finding("operator", "ok", "regroup-1 is at work")
    away = checks.operator(lease(3600), None, NOW)
    assert (away.state, away.found) == ("fail", "its Lease was renewed 60m ago")
    assert checks.operator(None, ClusterError("not found", 404), NOW).state == "fail"
    assert checks.operator(None, ClusterError("forbidden", 403), NOW).state == "warn"
    assert checks.operator({}, None, NOW).state == "fail"


def test_rights_that_verbs_need_and_rights_that_show_more() -> None:
    every = dict.fromkeys((*checks.NEEDED, *checks.USEFUL), True)
    assert checks.rights("team", every).state == "ok"
    some = checks.rights("team", {**every, ("get", "pods/portforward"): False})
    assert (some.state, some.found) == (
        "warn", "you may not get pods/portforward (live `top`) in namespace team",
    )  # fmt: skip
    none = checks.rights("team", {**every, ("create", "trainingjobs"): False})
    assert (none.state, none.found) == (
        "fail", "you may not create trainingjobs in namespace team",
    )  # fmt: skip


def test_gpus_are_counted_over_the_nodes() -> None:
    with_gpus: Json = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    found = checks.gpus([with_gpus, with_gpus, {}])
    assert (found.state, found.found) == ("ok", "16 nvidia.com/gpu on 2 of 3 nodes")
    assert checks.gpus([{}]).state == "warn"
    assert checks.gpus(None).state == "warn"


def test_without_the_right_to_list_prometheuses_the_finding_says_so() -> None:
    ours, gap = [Monitor("regroup-system", {}, None)], ClusterError("you may not list them", 403)
    found = checks.monitoring(Selection("PodMonitor", "metrics.podMonitor", ours, (), gap))
    assert (found.state, found.found) == (
        "warn", "unknown whether a Prometheus selects them: you may not list them",
    )  # fmt: skip


LABELS = {"release": "x", "tier": "gpu"}
X: Json = {"matchLabels": {"release": "x"}}


def seen(
    ours: Sequence[Mapping[str, str]] | None,
    *selectors: MonitorSelector,
    of_namespace: Mapping[str, str] | None = None,
) -> Finding:
    """What is found of monitors with these labels in namespace `regroup-system`."""
    monitors = (
        None
        if ours is None
        else [Monitor("regroup-system", labels, of_namespace) for labels in ours]
    )
    return checks.monitoring(Selection("PodMonitor", "metrics.podMonitor", monitors, selectors))


def everywhere(objects: Json | None) -> MonitorSelector:
    return MonitorSelector("monitoring", objects, {})


def expression(operator: str, key: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("ours", "selectors", "state"),
    [
        (None, [], "warn"),
        ([], [{}], "warn"),
        ([LABELS], [], "warn"),
        ([LABELS], [None], "fail"),
        ([LABELS], [{}], "ok"),
        ([{"a": "b"}], [X], "fail"),
        ([LABELS], [None, X], "ok"),
        ([LABELS, {"a": "b"}], [X], "fail"),
        ([LABELS], [{**X, **expression("In", "tier", "cpu")}], "fail"),
        ([LABELS], [expression("In", "tier", "cpu", "gpu")], "ok"),
        ([LABELS], [expression("In", "zone", "a")], "fail"),
        ([LABELS], [expression("NotIn", "tier", "gpu")], "fail"),
        ([LABELS], [expression("NotIn", "zone", "a")], "ok"),
        ([LABELS], [expression("Exists", "tier")], "ok"),
        ([LABELS], [expression("Exists", "zone")], "fail"),
        ([LABELS], [expression("DoesNotExist", "tier")], "fail"),
        ([LABELS], [expression("DoesNotExist", "zone")], "ok"),
        ([LABELS], [expression("Gt", "zone", "1")], "warn"),
        ([LABELS], [{"matchLabels": {"release": "y"}, **expression("Gt", "zone", "1")}], "fail"),
        ([LABELS], [expression("Gt", "zone", "1"), X], "ok"),
    ],
)
def test_a_prometheus_selects_by_labels(
    ours: list[dict[str, str]] | None, selectors: list[Json | None], state: str
) -> None:
    assert seen(ours, *map(everywhere, selectors)).state == state


@pytest.mark.parametrize(
    ("of_namespace", "namespaces", "state"),
    [
        (None, {}, "ok"),
        (None, None, "fail"),
        (None, {"matchLabels": {"watch": "yes"}}, "warn"),
        ({}, {"matchLabels": {"watch": "yes"}}, "fail"),
        ({"watch": "yes"}, {"matchLabels": {"watch": "yes"}}, "ok"),
        ({"watch": "yes"}, expression("NotIn", "watch", "yes"), "fail"),
    ],
)
def test_a_prometheus_selects_by_namespaces_too(
    of_namespace: dict[str, str] | None, namespaces: Json | None, state: str
) -> None:
    selector = MonitorSelector("monitoring", X, namespaces)
    assert seen([LABELS], selector, of_namespace=of_namespace).state == state
    in_its_own = MonitorSelector("regroup-system", X, None)
    assert seen([LABELS], in_its_own, of_namespace=of_namespace).state == "ok"


def test_the_finding_says_what_a_prometheus_wants() -> None:
    assert seen([{"a": "b"}], everywhere(X)).found == (
        "no Prometheus selects them: it wants [{'release': 'x'}]"
    )
    wanted = MonitorSelector("monitoring", X, None)
    assert seen([LABELS], wanted).found.endswith(
        "{'release': 'x'} in its own namespace monitoring]"
    )


def test_kueue_is_not_needed_and_not_used() -> None:
    assert checks.queueing(["apps"]).state == "ok"
    assert checks.queueing(["kueue.x-k8s.io"]).state == "warn"


def test_a_claim_has_to_be_shared() -> None:
    assert checks.claim("c", {"spec": {"accessModes": ["ReadWriteMany"]}}, None).state == "ok"
    alone = checks.claim("c", {"spec": {"accessModes": ["ReadWriteOnce"]}}, None)
    assert (alone.state, alone.found) == ("fail", "it is ReadWriteOnce")
    assert (
        checks.claim("c", None, ClusterError("not found")).found
        == "it could not be read: not found"
    )


def test_the_report_fits_eighty_columns_and_its_code_says_whether_something_fails() -> None:
    findings = [checks.version("v1.29.0"), checks.no_claim(), checks.no_monitoring()]
    lines = checks.report_lines(findings, 80)
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "FAIL  Kubernetes: v1.29.0",
        "      do: upgrade the cluster to 1.30 or newer",
    ]
    assert checks.exit_code(findings) == 1
    assert checks.exit_code(findings[1:]) == 0
