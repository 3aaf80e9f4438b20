"""Each value of the chart is described, known to the schema, and read: it changes what helm
renders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.chart import CHART, by_name, render, rendered_text, template
from tools import chart_pages

VALUES = {value.path: value for value in chart_pages.values()}


class Change(NamedTuple):
    """What a value changes."""

    to: Any
    adds: str = ""
    """In a line that is new."""
    removes: str = ""
    """In a line that is gone."""
    given: tuple[str, ...] = ()
    """Settings without which nothing reads the value."""


MAP, TEXT = {"team": "blue"}, "team: blue"
POLICY = ("admissionPolicy.enabled=true",)
MONITOR = ("metrics.serviceMonitor.enabled=true",)
POD_MONITOR = ("metrics.podMonitor.enabled=true",)
RULE = ("metrics.prometheusRule.enabled=true",)
GRAFANA = ("dashboards.grafanaOperator.enabled=true",)
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
CHANGES = {
    "commonLabels": Change(MAP, TEXT),
    "commonAnnotations": Change(MAP, TEXT),
    "crds.enabled": Change(False, removes="kind: CustomResourceDefinition"),
    "crds.keep": Change(False, removes="helm.sh/resource-policy: keep"),
    "replicas": Change(5, "replicas: 5"),
    "image.repository": Change("r/o", "image: r/o:"),
    "image.tag": Change("7", "regroup-operator:7"),
    "image.pullPolicy": Change("Always", "imagePullPolicy: Always"),
    "trainer.image.repository": Change("r/t", '"r/t:'),
    "trainer.image.tag": Change("7", "regroup-trainer:7"),
    "trainer.image.python": Change("3.12", 'TRAINER_PYTHON, value: "3.12"'),
    "imagePullSecrets": Change(["mine"], "- name: mine"),
    "watch.namespaces": Change(["team"], "namespace: team"),
    "watch.nodes": Change(False, removes="resources: [nodes]"),
    "maxWorkersPerJob": Change(9, 'MAX_WORKERS, value: "9"'),
    "operatorKey.existingSecret": Change("mine", "KEY_SECRET, value: regroup-system/mine"),
    "userRoles.enabled": Change(False, removes="name: regroup-user-edit"),
    "flowSchema.enabled": Change(False, removes="name: workload-high"),
    "admissionPolicy.enabled": Change(True, "kind: ValidatingAdmissionPolicy"),
    "admissionPolicy.serviceAccounts": Change(["blue"], 'in ["blue"]', given=POLICY),
    "admissionPolicy.priorityClasses": Change(["blue"], 'in ["","blue"]', given=POLICY),
    "admissionPolicy.secrets": Change(["blue"], """'["blue"]'""", given=POLICY),
    "admissionPolicy.namespaceSelector": Change({"matchLabels": MAP}, TEXT, given=POLICY),
    "coordinator.resources.requests": Change({"cpu": "3"}, '"cpu":"3"'),
    "coordinator.resources.limits": Change({"cpu": "3"}, '"cpu":"3"'),
    "coordinator.growWithJob": Change(False, 'COORDINATORS_GROW, value: "false"'),
    "networkPolicy.operator": Change(False, removes="kind: NetworkPolicy"),
    "networkPolicy.scrapers": Change([{"podSelector": {"matchLabels": MAP}}], TEXT),
    "metrics.port": Change(9090, "containerPort: 9090"),
    "metrics.service.enabled": Change(False, removes="kind: Service"),
    "metrics.serviceMonitor.enabled": Change(True, "kind: ServiceMonitor"),
    "metrics.serviceMonitor.labels": Change(MAP, TEXT, given=MONITOR),
    "metrics.serviceMonitor.interval": Change("7s", "interval: 7s", given=MONITOR),
    "metrics.podMonitor.enabled": Change(True, "kind: PodMonitor"),
    "metrics.podMonitor.labels": Change(MAP, TEXT, given=POD_MONITOR),
    "metrics.podMonitor.interval": Change("7s", "interval: 7s", given=POD_MONITOR),
    "metrics.prometheusRule.enabled": Change(True, "kind: PrometheusRule"),
    "metrics.prometheusRule.labels": Change(MAP, TEXT, given=RULE),
    "metrics.prometheusRule.gpu": Change(True, "alert: TrainingJobGpuXid", given=RULE),
    "metrics.prometheusRule.runbookUrl": Change("https://wiki", "https://wiki/", given=RULE),
    "tracing.endpoint": Change("http://collector:4318", "http://collector:4318"),
    "dashboards.enabled": Change(False, removes="grafana_dashboard"),
    "dashboards.labels": Change(MAP, TEXT),
    "dashboards.annotations": Change(MAP, TEXT),
    "dashboards.grafanaOperator.enabled": Change(True, "kind: GrafanaDashboard"),
    "dashboards.grafanaOperator.instanceLabels": Change(MAP, '"team":"blue"', given=GRAFANA),
    "logLevel": Change("DEBUG", "LOG_LEVEL, value: DEBUG"),
    "logFormat": Change("json", "LOG_FORMAT, value: json"),
    "resources.requests": Change({"cpu": "3"}, 'cpu: "3"'),
    "resources.limits": Change({"cpu": "3"}, 'cpu: "3"'),
    "podAnnotations": Change(MAP, TEXT),
    "podLabels": Change(MAP, TEXT),
    "nodeSelector": Change(MAP, TEXT),
    "tolerations": Change([{"key": "blue", "operator": "Exists"}], "key: blue"),
    "affinity": Change({"nodeAffinity": {}}, "nodeAffinity: {}", removes="podAntiAffinity"),
    "topologySpreadConstraints": Change(SPREAD, "maxSkew: 1"),
    "priorityClassName": Change("blue", "priorityClassName: blue"),
    "serviceAccount.create": Change(
        False, removes="kind: ServiceAccount", given=('serviceAccount.name="mine"',)
    ),
    "serviceAccount.name": Change("mine", "serviceAccountName: mine"),
    "serviceAccount.annotations": Change(MAP, TEXT),
}


def lines(*settings: str) -> list[str]:
    return rendered_text(*settings).splitlines()


def test_every_value_is_tried_here() -> None:
    assert list(CHANGES) == list(VALUES)


@pytest.mark.parametrize("path", CHANGES)
def test_a_value_changes_what_helm_renders(path: str) -> None:
    change = CHANGES[path]
    assert change.adds or change.removes
    before = lines(*change.given)
    after = lines(*change.given, f"{path}={json.dumps(change.to)}")
    if change.adds:
        assert [line for line in set(after) - set(before) if change.adds in line]
    if change.removes:
        gone = [line for line in before if change.removes in line]
        assert len(gone) > len([line for line in after if change.removes in line])


def test_every_value_has_a_description_and_a_default_that_the_schema_takes() -> None:
    assert not [value.path for value in VALUES.values() if not value.description.endswith(".")]
    assert template("--values", str(CHART / "values.yaml")).returncode == 0


def test_all_values_that_users_of_0_2_0_may_have_set_are_known() -> None:
    """`helm upgrade --reset-then-reuse-values` gives them to this chart. The file is from that
    release: not every copy of these sources has the history.
    """
    done = template("--values", str(Path(__file__).with_name("values-0.2.0.yaml")))
    assert done.returncode == 0, done.stderr
    assert by_name(done.stdout).keys() == render().keys()


def test_labels_and_annotations_of_all_objects_are_on_all_objects() -> None:
    objects = render(f"commonLabels={json.dumps(MAP)}", f"commonAnnotations={json.dumps(MAP)}")
    for name, found in objects.items():
        assert found["metadata"]["labels"]["team"] == "blue", name
        assert found["metadata"]["annotations"]["team"] == "blue", name
    deployment = objects["Deployment", "regroup"]["spec"]
    assert deployment["template"]["metadata"]["labels"]["team"] == "blue"
    assert "team" not in deployment["selector"]["matchLabels"]


def test_labels_of_users_do_not_take_the_place_of_those_that_select_pods() -> None:
    wrong = json.dumps({"app.kubernetes.io/name": "theirs", **MAP})
    own = json.dumps({"app.kubernetes.io/name": "theirs", "team": "red"})
    spec = render(f"commonLabels={wrong}", f"podLabels={own}")["Deployment", "regroup"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "red"


def test_an_own_service_account_needs_a_name_and_gets_the_rights() -> None:
    own = render("serviceAccount.create=false", 'serviceAccount.name="mine"')
    assert ("ServiceAccount", "mine") not in own
    subjects = [s for found in own.values() for s in found.get("subjects", ())]
    assert {subject["name"] for subject in subjects} == {"mine"}
    refused = template("--set", "serviceAccount.create=false")
    assert "serviceAccount" in refused.stderr
    assert "name" in refused.stderr


def test_a_service_monitor_without_the_service_is_refused() -> None:
    flags = ("metrics.serviceMonitor.enabled=true", "metrics.service.enabled=false")
    refused = template("--set", ",".join(flags))
    assert refused.returncode != 0
    assert "service" in refused.stderr
