"""The chart renders, refuses values it does not know, and grants what the operator's code asks for
and no more.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml

from regroup_operator.api.settings import Settings
from regroup_trainer.system.otlp_settings import OtlpSettings
from tests.support.chart import (
    CHART,
    NAMESPACE,
    ROOT,
    Json,
    program,
    render,
    rendered_text,
    template,
)


def operator_of(objects: dict[tuple[str, str], Json]) -> Json:
    spec: Json = objects["Deployment", "regroup"]["spec"]["template"]["spec"]
    return spec


def test_helm_finds_nothing_to_complain_about() -> None:
    done = program("helm", "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_the_operator_has_two_replicas_which_a_rollout_or_a_drain_takes_in_turn() -> None:
    objects = render()
    deployment = objects["Deployment", "regroup"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (2, {"type": "RollingUpdate"})
    assert objects["PodDisruptionBudget", "regroup"]["spec"] == {
        "maxUnavailable": 1,
        "selector": deployment["selector"],
    }
    (apart,) = operator_of(objects)["affinity"]["podAntiAffinity"].values()
    assert apart[0]["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    assert render("replicas=1")["Deployment", "regroup"]["spec"]["replicas"] == 1
    own = render('affinity={"nodeAffinity": {}}')
    assert operator_of(own)["affinity"] == {"nodeAffinity": {}}


def test_the_operator_may_write_one_lease() -> None:
    objects = render()
    place = "regroup-system/regroup-operator"
    values = {e["name"]: e["value"] for e in operator_of(objects)["containers"][0]["env"]}
    assert values["REGROUP_OPERATOR_LEASE"] == place
    role = objects["Role", "regroup-leader"]
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert role["metadata"]["namespace"] == "regroup-system"
    assert role["rules"] == [
        {**leases, "resourceNames": ["regroup-operator"], "verbs": ["get", "patch"]},
        {**leases, "verbs": ["create"]},
    ]


def test_the_operator_is_a_restricted_pod() -> None:
    pod = operator_of(render())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"livenessProbe", "readinessProbe", "resources"} <= set(container)


def test_a_replica_that_waits_is_not_ready_and_is_not_killed() -> None:
    container = operator_of(render())["containers"][0]
    paths = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
    assert paths == {"livenessProbe": "/livez", "readinessProbe": "/healthz"}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("replicas=0", "replicas"),
        ("replica=2", "replica"),
        ('image={"repository": ""}', "repository"),
        ('image={"pullPolicy": "Sometimes", "repository": "a"}', "pullPolicy"),
        ('logLevel="LOUD"', "logLevel"),
        ('metrics={"port": 80}', "port"),
        ('metrics.prometheusRule={"runbookUrl": "wiki"}', "runbookUrl"),
        ('watch={"namespaces": "team"}', "namespaces"),
    ],
)
def test_a_value_that_the_schema_does_not_know_is_refused_by_name(
    setting: str, complaint: str
) -> None:
    done = template("--set-json", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_the_definition_comes_with_the_chart_and_stays_by_default() -> None:
    name = ("CustomResourceDefinition", "trainingjobs.regroup.dev")
    assert render()[name]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in render("crds.keep=false")[name]["metadata"]
    assert name not in render("crds.enabled=false")
    plain = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
    assert render()[name]["spec"] == plain["spec"]


def test_images_are_those_of_the_values() -> None:
    objects = render(
        'image={"repository": "r/o", "tag": "7"}', 'trainer.image={"repository": "r/t", "tag": "8"}'
    )
    environment = {e["name"]: e["value"] for e in operator_of(objects)["containers"][0]["env"]}
    assert environment["REGROUP_OPERATOR_COORDINATOR_IMAGE"] == "r/o:7"
    assert environment["REGROUP_OPERATOR_TRAINER_IMAGE"] == "r/t:8"


def test_the_python_of_the_trainer_image_is_that_of_the_dockerfile_or_what_the_values_say() -> None:
    base = re.search(r"^ARG BASE_IMAGE=python:(3\.\d+)-", (ROOT / "Dockerfile").read_text(), re.M)
    assert base is not None
    for repository, given, python in (
        ("mirror.local/x/regroup-trainer", "", base[1]),
        ("mirror.local/x/regroup-trainer", "3.12", "3.12"),
        ("mine", "", None),
        ("mine", "3.11", "3.11"),
    ):
        objects = render(f'trainer.image={{"repository": "{repository}", "python": "{given}"}}')
        environment = {e["name"]: e["value"] for e in operator_of(objects)["containers"][0]["env"]}
        assert environment.get("REGROUP_OPERATOR_TRAINER_PYTHON") == python


def test_all_that_the_deployment_sets_is_a_setting_of_the_operator() -> None:
    from regroup_operator.api.settings import PREFIX, Settings

    objects = render('imagePullSecrets=["a"]', 'watch.namespaces=["team"]')
    environment = {e["name"]: e["value"] for e in operator_of(objects)["containers"][0]["env"]}
    settings = Settings.read(environment)
    assert settings.namespaces == ("team",)
    assert settings.image_pull_secrets == ("a",)
    assert (
        settings.network_peers[0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        == "regroup-operator"
    )
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    assert {name for name in environment if name.startswith(PREFIX)} <= known


def test_two_renderings_are_the_same_bytes() -> None:
    first, second = (template().stdout for _ in range(2))
    assert first
    assert first == second


def test_the_chart_renders_no_key_and_the_operator_may_make_one_or_read_ones_own() -> None:
    def key_of(*settings: str) -> tuple[str, list[Json]]:
        objects = render(*settings)
        assert not [key for key in objects if key[0] == "Secret"]
        values = {e["name"]: e["value"] for e in operator_of(objects)["containers"][0]["env"]}
        role = objects["Role", "regroup-key"]
        assert role["metadata"]["namespace"] == "regroup-system"
        return values["REGROUP_OPERATOR_KEY_SECRET"], role["rules"]

    def read(name: str) -> Json:
        secrets = {"apiGroups": [""], "resources": ["secrets"]}
        return {**secrets, "resourceNames": [name], "verbs": ["get"]}

    make = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    assert key_of() == ("regroup-system/regroup-key", [read("regroup-key"), make])
    given = key_of('operatorKey.existingSecret="mine"')
    assert given == ("regroup-system/mine", [read("mine")])


# --- rights ---------------------------------------------------------------------------------------


def is_of_the_operator(key: tuple[str, str]) -> bool:
    """Whether this is a role of the operator, not one for users."""
    return key[0] in ("Role", "ClusterRole") and "-user-" not in key[1]


def rules_of(objects: dict[tuple[str, str], Json]) -> set[tuple[str, str]]:
    """Resource and verb, over all roles of the operator."""
    roles = [document for key, document in objects.items() if is_of_the_operator(key)]
    rules = [rule for role in roles for rule in role["rules"]]
    return {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


USED = {
    ("trainingjobs", "get"): "job",
    ("trainingjobs", "delete"): "delete_job",
    ("trainingjobs/status", "patch"): "change_status",
    ("pods", "list"): "pods",
    ("pods", "create"): "create_pod",
    ("pods", "delete"): "delete_pod",
    ("services", "get"): "service",
    ("services", "create"): "create_service",
    ("services", "patch"): "change_service",
    ("services", "delete"): "delete_service",
    ("secrets", "get"): "secret",
    ("secrets", "create"): "create_secret",
    ("persistentvolumeclaims", "get"): "claim",
    ("persistentvolumeclaims", "create"): "create_claim",
    ("events", "list"): "pod_events",
    ("events", "create"): "create_event",
    ("networkpolicies", "get"): "network_policy",
    ("networkpolicies", "create"): "create_network_policy",
    ("networkpolicies", "patch"): "change_network_policy",
    ("networkpolicies", "delete"): "delete_network_policy",
    ("poddisruptionbudgets", "get"): "disruption_budget",
    ("poddisruptionbudgets", "create"): "create_disruption_budget",
    ("poddisruptionbudgets", "patch"): "change_disruption_budget",
    ("nodes", "get"): "node",
    ("leases", "get"): "node_lease",
}
"""Right -> the method of `cluster.Cluster` that needs it."""
WATCHED = {
    (resource, verb)
    for resource in (
        "trainingjobs",
        "pods",
        "nodes",
        "services",
        "networkpolicies",
        "poddisruptionbudgets",
    )
    for verb in ("list", "watch")
}
OWNER = {("trainingjobs/finalizers", "update")}
LEADER = {("leases", verb) for verb in ("get", "create", "patch")}


def test_every_right_is_used_and_every_use_has_its_right() -> None:
    from regroup_operator.controller.cluster import Cluster

    methods = {name for name in vars(Cluster) if re.fullmatch(r"[a-z][a-z_]*", name)}
    assert methods - {"may", "pod"} == set(USED.values()), "one pod is read by a list"
    assert rules_of(render()) == set(USED) | WATCHED | OWNER | LEADER


def test_no_rule_has_a_wildcard() -> None:
    roles = [
        document for (kind, _), document in render().items() if kind in ("Role", "ClusterRole")
    ]
    assert "*" not in json.dumps([role["rules"] for role in roles])


CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "FlowSchema")


def test_who_may_make_nothing_for_the_whole_cluster_can_install_it_without_that() -> None:
    without = ("userRoles", "flowSchema", "crds")
    watch = 'watch={"namespaces": ["a"], "nodes": false}'
    objects = render(watch, *(f"{name}.enabled=false" for name in without))
    assert not [key for key in objects if key[0] in CLUSTER_WIDE]
    assert {kind for kind, _ in render()} >= set(CLUSTER_WIDE)


def test_an_operator_of_some_namespaces_has_no_rights_elsewhere() -> None:
    watch = 'watch={"namespaces": ["a", "b"], "nodes": false}'
    objects = render(watch)
    assert not [key for key in objects if key[0] == "ClusterRole" and is_of_the_operator(key)]
    assert not [key for key in objects if key[0] == "ClusterRoleBinding"]
    documents = [one for one in yaml.safe_load_all(rendered_text(watch)) if one]
    for kind in ("Role", "RoleBinding"):
        found = [one["metadata"] for one in documents if one["kind"] == kind]
        places = sorted((one["namespace"], one["name"]) for one in found)
        own = [(NAMESPACE, "regroup-key"), (NAMESPACE, "regroup-leader")]
        assert places == [("a", "regroup"), ("b", "regroup"), *own]


def test_roles_for_users_write_no_status_and_can_be_left_out() -> None:
    users = [d for key, d in render().items() if key[0] == "ClusterRole" and "-user-" in key[1]]
    assert len(users) == 2
    rules = [rule for role in users for rule in role["rules"]]
    assert {group for rule in rules for group in rule["apiGroups"]} == {"regroup.dev"}
    writable = [r for rule in rules if "patch" in rule["verbs"] for r in rule["resources"]]
    assert writable == ["trainingjobs", "trainingjobs/scale"]
    assert not [key for key in render("userRoles.enabled=false") if "-user-" in key[1]]


# --- what is off by default -----------------------------------------------------------------------


def test_monitors_are_off_unless_asked_for() -> None:
    assert not [key for key in render() if key[0].endswith("Monitor")]
    objects = render("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true")
    # The operator's own series name the namespaces of jobs.
    assert objects["ServiceMonitor", "regroup"]["spec"]["endpoints"][0]["honorLabels"] is True


def pod_monitor() -> Json:
    """The spec of the PodMonitor."""
    spec: Json = render("metrics.podMonitor.enabled=true")["PodMonitor", "regroup-jobs"]["spec"]
    return spec


def test_series_of_a_pod_cannot_name_another_namespace_or_anything_but_jobs() -> None:
    monitor = pod_monitor()
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == [
        "metrics",
        "status",
    ]
    for endpoint in monitor["podMetricsEndpoints"]:
        assert endpoint["honorLabels"] is False
        keep, drop = endpoint["metricRelabelings"]
        assert (keep["action"], keep["regex"]) == ("keep", "trainingjob_.+")
        assert drop["action"] == "labeldrop"
        assert re.fullmatch(drop["regex"], "exported_namespace")


def test_series_of_a_pod_cannot_name_another_job_than_its_label() -> None:
    for endpoint in pod_monitor()["podMetricsEndpoints"]:
        (named,) = endpoint["relabelings"]
        assert named["sourceLabels"] == ["__meta_kubernetes_pod_label_regroup_dev_job"]
        assert named["targetLabel"] == "trainingjob"
        assert re.fullmatch(endpoint["metricRelabelings"][1]["regex"], "exported_trainingjob")


@pytest.mark.parametrize(
    "limit",
    ["bodySizeLimit", "sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"],
)
def test_an_answer_of_a_pod_has_a_bound(limit: str) -> None:
    assert pod_monitor()[limit]


def test_the_pods_of_a_tenant_do_not_use_up_the_targets_of_all() -> None:
    assert "targetLimit" not in pod_monitor()


def test_alerts_are_off_unless_asked_for_and_those_about_gpus_apart() -> None:
    def groups(*settings: str) -> list[Json]:
        rule = render("metrics.prometheusRule.enabled=true", *settings)["PrometheusRule", "regroup"]
        found: list[Json] = rule["spec"]["groups"]
        return found

    def files(*names: str) -> list[Json]:
        texts = [(CHART / f"alerts/{name}.yaml").read_text() for name in names]
        return [group for text in texts for group in yaml.safe_load(text)["groups"]]

    assert not [key for key in render() if key[0] == "PrometheusRule"]
    assert groups() == files("regroup")
    assert groups("metrics.prometheusRule.gpu=true") == files("regroup", "gpu")
    own = groups('metrics.prometheusRule.runbookUrl="https://wiki/runbooks/"')
    links = [rule["annotations"]["runbook_url"] for group in own for rule in group["rules"]]
    assert all(re.fullmatch(r"https://wiki/runbooks/\w+\.md", link) for link in links)


def test_a_release_whose_values_are_older_than_the_alerts_still_renders() -> None:
    """`helm upgrade --reuse-values` keeps the values of the former chart."""
    assert "PrometheusRule" not in {kind for kind, _ in render("metrics.prometheusRule=null")}
    for lacks in ("gpu", "runbookUrl"):
        settings = (f"metrics.prometheusRule.{lacks}=null", "metrics.prometheusRule.enabled=true")
        assert ("PrometheusRule", "regroup") in render(*settings)


def test_only_scrapers_reach_the_operator() -> None:
    objects = render()
    policy = objects["NetworkPolicy", "regroup"]["spec"]
    template = objects["Deployment", "regroup"]["spec"]["template"]
    labels = policy["podSelector"]["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics"}]
    assert rule["from"] and all(rule["from"])
    assert policy["policyTypes"] == ["Ingress"]
    nobody = render('networkPolicy={"scrapers": []}')["NetworkPolicy", "regroup"]["spec"]
    assert not nobody["ingress"]
    assert not [key for key in render("networkPolicy.operator=false") if "Policy" in key[0]]


def test_the_admission_policy_is_off_unless_asked_for() -> None:
    assert not [key for key in render() if "AdmissionPolicy" in key[0]]
    objects = render("admissionPolicy.enabled=true")
    assert objects["ValidatingAdmissionPolicyBinding", "regroup-jobs"]["spec"]["policyName"] == (
        "regroup-jobs"
    )
    flags = ("--set-json", 'admissionPolicy={"enabled": true, "secrets": ["a"]"]}')
    assert template(*flags).returncode != 0


@pytest.mark.parametrize("grows", [True, False])
def test_the_coordinators_of_large_jobs_get_more_unless_all_are_to_get_the_same(
    grows: bool,
) -> None:
    settings = () if grows else ("coordinator.growWithJob=false",)
    (container,) = operator_of(render(*settings))["containers"]
    given = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    read = Settings.read(given)
    assert read.coordinators_grow == grows
    assert read.coordinator_resources == Settings.model_fields["coordinator_resources"].default


def test_logs_are_json_where_it_is_asked_for() -> None:
    (container,) = operator_of(render('logFormat="json"'))["containers"]
    given = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    assert (Settings.read(given).log_format, given["REGROUP_LOG_FORMAT"]) == ("json", "json")
    assert "LOG_FORMAT" not in str(operator_of(render("logFormat=null"))), "of a former chart"


def test_traces_are_sent_only_where_there_is_an_endpoint() -> None:
    def variables(*settings: str) -> dict[str, str]:
        (container,) = operator_of(render(*settings))["containers"]
        return {entry["name"]: entry.get("value", "") for entry in container["env"]}

    assert not [name for name in variables() if "OTLP" in name]
    assert not [name for name in variables("tracing=null") if "OTLP" in name], "of a former chart"
    given = variables('tracing.endpoint="http://collector:4318"')
    assert Settings.read(given).otlp_endpoint == "http://collector:4318"
    own = OtlpSettings.read(given, "regroup-operator")
    assert own is not None
    assert own.url == "http://collector:4318/v1/traces"
    for wrong in ("collector:4318", "http://me:secret@collector"):
        flags = ("--set-json", f'tracing.endpoint="{wrong}"')
        assert template(*flags).returncode != 0


def test_the_dashboards_come_as_a_config_map_for_grafanas_sidecar() -> None:
    dashboards = render()["ConfigMap", "regroup-dashboards"]
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert set(dashboards["data"]) == {path.name for path in (CHART / "dashboards").glob("*.json")}
    assert ("ConfigMap", "regroup-dashboards") not in render("dashboards.enabled=false")


def test_grafana_operators_resources_come_only_where_they_are_asked_for() -> None:
    def boards(*settings: str) -> list[str]:
        return [name for kind, name in render(*settings) if kind == "GrafanaDashboard"]

    asked = "dashboards.grafanaOperator.enabled=true"
    assert boards(asked) == ["regroup-fleet", "regroup-job", "regroup-operator"]
    assert not boards()
    assert not boards(asked, "dashboards.enabled=false")


@pytest.mark.parametrize("name", ["fleet", "job", "operator"])
def test_grafana_operator_reads_each_dashboard_where_the_chart_has_put_its_file(name: str) -> None:
    labels = {"dashboards": "grafana", "team": "5"}
    objects = render(
        "dashboards.grafanaOperator.enabled=true",
        f"dashboards.grafanaOperator.instanceLabels={json.dumps(labels)}",
    )
    made = objects["GrafanaDashboard", f"regroup-{name}"]
    (source,) = made["spec"].keys() & {"json", "gzipJson", "url", "jsonnet", "configMapRef"}
    place = made["spec"][source]
    held = objects["ConfigMap", place["name"]]
    assert held["metadata"]["namespace"] == made["metadata"]["namespace"] == NAMESPACE
    assert held["data"][place["key"]] == (CHART / f"dashboards/{name}.json").read_text()
    assert made["spec"]["instanceSelector"] == {"matchLabels": labels}
