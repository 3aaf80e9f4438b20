"""Upgrades of a release by helm, on a real API server: the key of running jobs outlives them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from devcluster.apiserver import ApiServer
from devcluster.errors import CommandFailedError
from devcluster.processes import run
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.credentials import login
from regroup_operator.controller.operator_key import read_or_make_keys
from regroup_operator.render.keyring import name_of
from tests.support.documented_commands import commands
from tests.support.former_release import FormerRelease
from tests.support.kube_api import ROOT, Api, Json, Namespace
from tests.support.page_terminal import PageTerminal
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]

CHART = ROOT / "charts/regroup"
UPGRADE_PAGE = ROOT / "docs/tasks/upgrade.md"
SYSTEM = "regroup-system"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/regroup-key"
VERSION = re.compile(r"(?<=ersion: )[\d.]+$", re.MULTILINE)
"""Of a chart, and of its operator."""
JOBS = "/apis/regroup.dev/v1alpha1/trainingjobs"
FORMER_KEY = """\
{{- $existing := lookup "v1" "Secret" .Release.Namespace (include "regroup.keySecret" .) }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "regroup.keySecret" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "regroup.labels" . | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
type: Opaque
data:
  {{- if $existing }}
  key: {{ index $existing.data "key" }}
  {{- else }}
  key: {{ randAlphaNum 48 | b64enc }}
  {{- end }}
"""
"""The template with which charts rendered the key before the operator made it."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        yield started


@pytest.fixture
def former_chart(tmp_path: Path) -> Path:
    """A chart that renders the key."""
    chart = tmp_path / "regroup"
    shutil.copytree(CHART, chart)
    (chart / "templates/key.yaml").write_text(FORMER_KEY)
    return chart


def helm(server: ApiServer, *arguments: str | Path) -> str:
    """Run helm on the release. Raises CommandFailedError."""
    command = [server.bin / "helm", *arguments, "--namespace", SYSTEM]
    return run(command, environment={"KUBECONFIG": str(server.kubeconfig)})


def upgrade(server: ApiServer, chart: Path) -> None:
    """As `docs/tasks/upgrade.md` says."""
    helm(server, "upgrade", "regroup", chart, "--reset-then-reuse-values")


def stored_key(server: ApiServer) -> bytes:
    answer = Api(server.kubeconfig).request("GET", SECRET)
    assert answer.status == 200, answer.message
    return base64.b64decode(answer.body["data"]["key"])


def key_that_the_operator_takes(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name, after a start of the operator."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))

    async def read() -> str:
        async with Cluster(login) as cluster:
            return (await read_or_make_keys(cluster, f"{SYSTEM}/regroup-key")).current

    return asyncio.run(read())


@pytest.mark.long
def test_a_key_that_a_former_chart_made_outlives_the_upgrade_and_the_way_back(
    server: ApiServer, former_chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm(server, "install", "regroup", former_chart, "--create-namespace")
    key = stored_key(server)
    upgrade(server, CHART)
    assert stored_key(server) == key
    assert key_that_the_operator_takes(server, monkeypatch) == name_of(key)
    upgrade(server, former_chart)
    assert stored_key(server) == key


@pytest.mark.long
def test_the_way_back_to_a_chart_that_rendered_the_key_is_an_upgrade(
    server: ApiServer, former_chart: Path, tmp_path: Path
) -> None:
    """`helm rollback` fails as the page says, and changes nothing; what the page has then works."""
    (clone := tmp_path / "clone").mkdir()
    (clone / "charts").symlink_to(ROOT / "charts")
    terminal = PageTerminal(clone, {"KUBECONFIG": str(server.kubeconfig)}, (server.bin,))
    helm(server, "install", "regroup", former_chart, "--create-namespace")
    terminal.type("helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values")
    key, before = stored_key(server), objects_of(server)

    with pytest.raises(CommandFailedError) as failed:
        helm(server, "rollback", "regroup")
    page = " ".join(UPGRADE_PAGE.read_text().split())
    (quoted,) = re.findall(r"`helm rollback` to a chart .*? fails: `(.*?)`", page)
    assert quoted in str(failed.value)
    operator = ("Deployment", "regroup")
    assert objects_of(server)[operator] == before[operator]

    terminal.type(
        "helm upgrade regroup FORMER_CHART -n regroup-system --reset-then-reuse-values "
        "--set-string image.tag=FORMER_TAG,trainer.image.tag=FORMER_TAG",
        changes={"FORMER_CHART": str(former_chart), "FORMER_TAG": "former"},
    )
    assert stored_key(server) == key
    assert ":former" in helm(server, "get", "manifest", "regroup")


@pytest.mark.long
def test_an_upgrade_and_its_values_are_rolled_back(server: ApiServer, tmp_path: Path) -> None:
    """The operator is as it was, and no job is touched."""
    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    (chart := newer / "Chart.yaml").write_text(VERSION.sub("9.9.9", chart.read_text()))
    terminal = PageTerminal(tmp_path, {"KUBECONFIG": str(server.kubeconfig)}, (server.bin,))
    helm(server, "install", "regroup", CHART, "--create-namespace")
    api = Api(server.kubeconfig)
    wait_until("the TrainingJob API", lambda: api.request("GET", JOBS).status == 200)
    team = Namespace.make(api, "team")
    assert team.create(SMALLEST).status == 201
    job, before = team.read(), objects_of(server)
    manifest = helm(server, "get", "manifest", "regroup")

    setting = ("--reset-then-reuse-values", "--set", "logLevel=DEBUG")
    helm(server, "upgrade", "regroup", newer, *setting)
    assert REPLICAS in changes(before, objects_of(server))
    assert ":9.9.9" in helm(server, "get", "manifest", "regroup")
    terminal.type("helm rollback regroup -n regroup-system")
    now = objects_of(server)
    assert REPLICAS not in changes(before, now)
    assert now.keys() == before.keys()
    assert helm(server, "get", "manifest", "regroup") == manifest
    assert team.read() == job


@pytest.mark.long
def test_0_2_0_is_rolled_back_to_where_it_named_its_secret_before_the_upgrade(
    server: ApiServer, tmp_path: Path
) -> None:
    """Neither naming it nor the way there and back changes the key or the operator of 0.2.0."""
    former = FormerRelease(tmp_path / "0.2.0").chart
    terminal = PageTerminal(tmp_path, {"KUBECONFIG": str(server.kubeconfig)}, (server.bin,))
    helm(server, "install", "regroup", former, "--create-namespace")
    key, operator = stored_key(server), objects_of(server)["Deployment", "regroup"]
    terminal.type(
        "helm upgrade regroup FORMER_CHART -n regroup-system --reset-then-reuse-values "
        "--set operatorKey.existingSecret=regroup-key",
        changes={"FORMER_CHART": str(former)},
    )
    assert objects_of(server)["Deployment", "regroup"] == operator
    upgrade(server, CHART)
    terminal.type("kubectl -n regroup-system scale deployment regroup --replicas=0")
    terminal.type("helm rollback regroup -n regroup-system")
    assert objects_of(server)["Deployment", "regroup"].pods == operator.pods
    where = ("deployment", "regroup", f"--namespace={SYSTEM}", "--output=json")
    assert json.loads(server.kubectl("get", *where))["spec"]["replicas"] == 1
    assert stored_key(server) == key


@pytest.mark.long
def test_a_page_that_sets_a_value_keeps_the_defaults_of_a_newer_chart(
    server: ApiServer, tmp_path: Path
) -> None:
    """`--reuse-values` would not: no page types it."""
    former = FormerRelease(tmp_path / "0.2.0").chart
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    terminal = PageTerminal(tmp_path, {"KUBECONFIG": str(server.kubeconfig)}, (server.bin,))
    helm(server, "install", "regroup", former, "--create-namespace")
    terminal.type(
        "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
        "--set tracing.endpoint=http://otel-collector.monitoring:4318"
    )
    assert ("FlowSchema", "regroup") in objects_of(server)
    assert not [command for command in commands("helm") if "--reuse-values" in command.text]


def test_a_key_that_the_operator_made_outlives_an_upgrade_and_a_new_installation(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm(server, "install", "regroup", CHART, "--create-namespace")
    name = key_that_the_operator_takes(server, monkeypatch)
    upgrade(server, CHART)
    helm(server, "uninstall", "regroup")
    helm(server, "install", "regroup", CHART)
    assert key_that_the_operator_takes(server, monkeypatch) == name == name_of(stored_key(server))


REPLICAS = "replicas of the operator"
RESTART = {"Deployment", REPLICAS}
CLUSTER_ROLES = {"ClusterRole", "ClusterRoleBinding"}
ROLES = {"Role", "RoleBinding"}
ADMISSION = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
DEFINITION = {"CustomResourceDefinition"}
OF_THE_CLUSTER = {"FlowSchema", *CLUSTER_ROLES, *ADMISSION, *DEFINITION}
MARKED = {"PodDisruptionBudget", "ServiceAccount", *ROLES, *OF_THE_CLUSTER}
CHANGES = {
    "": set[str](),
    'logLevel="DEBUG"': RESTART,
    "replicas=3": {"Deployment"},
    "maxWorkersPerJob=8": RESTART,
    'image.tag="x"': RESTART,
    'trainer.image.tag="x"': RESTART,
    'tracing.endpoint="http://collector:4318"': RESTART,
    'resources.limits.memory="1Gi"': RESTART,
    'coordinator.resources.limits.memory="1Gi"': RESTART,
    "networkPolicy.operator=false": {"NetworkPolicy"},
    "networkPolicy.scrapers=[]": RESTART,
    "dashboards.enabled=false": {"ConfigMap"},
    "metrics.service.enabled=false": {"Service"},
    "userRoles.enabled=false": {"ClusterRole"},
    "admissionPolicy.enabled=true": ADMISSION,
    'commonAnnotations={"a":"b"}': {"Deployment", *MARKED},
    'commonLabels={"a":"b"}': {*RESTART, *MARKED},
    "flowSchema.enabled=false": {"FlowSchema"},
    'podLabels={"a":"c"}': RESTART,
    'watch.namespaces=["team"]': {*RESTART, *CLUSTER_ROLES, *ROLES},
    "watch.nodes=false": {*RESTART, *CLUSTER_ROLES, *ROLES},
    "crds.enabled=false": DEFINITION,
    "crds.enabled=true": DEFINITION,
}
"""What is set -> the kinds of objects that it changes, makes or deletes."""


class Shown(NamedTuple):
    """What is compared of an object."""

    version: str
    pods: Json


def objects_of(server: ApiServer) -> dict[tuple[str, str], Shown]:
    """The objects of the release, by kind and name."""
    manifest = helm(server, "get", "manifest", "regroup")
    found = json.loads(server.kubectl("get", "--filename=-", "--output=json", stdin=manifest))
    return {
        (one["kind"], one["metadata"]["name"]): Shown(
            one["metadata"]["resourceVersion"],
            one["spec"]["template"] if one["kind"] == "Deployment" else {},
        )
        for one in found["items"]
    }


def changes(former: dict[tuple[str, str], Shown], now: dict[tuple[str, str], Shown]) -> set[str]:
    """The kinds of objects that differ, and whether the operator's replicas are made anew."""
    kinds = {one[0] for one in former | now if former.get(one) != now.get(one)}
    operator = ("Deployment", "regroup")
    return kinds | ({REPLICAS} if former[operator].pods != now[operator].pods else set())


@pytest.mark.long
def test_a_changed_value_changes_what_it_is_about_and_no_job(server: ApiServer) -> None:
    """One after the other, as they are upgraded. Without any, nothing changes."""
    helm(server, "install", "regroup", CHART, "--create-namespace")
    api = Api(server.kubeconfig)
    wait_until("the TrainingJob API", lambda: api.request("GET", JOBS).status == 200)
    team = Namespace.make(api, "team")
    assert team.create(SMALLEST).status == 201
    job, former, found = team.read(), objects_of(server), {}
    for setting in CHANGES:
        option = ("--set-json", setting) if setting else ()
        helm(server, "upgrade", "regroup", CHART, "--reset-then-reuse-values", *option)
        now = objects_of(server)
        found[setting] = changes(former, now)
        assert team.read() == job, f"{setting} has touched it"
        former = now
    assert found == CHANGES
    helm(server, "uninstall", "regroup")
    assert team.read() == job
