"""Commands of the pages about the release and its operator, typed at a real API server.

What needs nodes (`--wait`, `helm test`) is typed on a cluster: `e2e/test_documented_commands_
cluster.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devcluster.apiserver import ApiServer
from tests.support.chart import write_overlay
from tests.support.documented_commands import first_job
from tests.support.former_release import FormerRelease
from tests.support.kube_api import ROOT, Api
from tests.support.page_terminal import PageTerminal
from tests.support.prometheus_operator import definition
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]
SYSTEM = "regroup-system"
MONITORS = ("servicemonitors", "podmonitors", "prometheusrules")
UNINSTALL = "helm uninstall regroup -n regroup-system"
WITH_IMAGES = (
    "helm install regroup charts/regroup -n regroup-system --create-namespace "
    "--set-string image.repository=REGISTRY/regroup-operator,image.tag=TAG "
    "--set-string trainer.image.repository=REGISTRY/regroup-trainer,trainer.image.tag=TAG"
)
KEEP_FORMER_KEY = (
    "kubectl -n $NAMESPACE patch secret $SECRET --type=merge "
    '-p "{\\"data\\": {\\"key\\": \\"$NEW\\", \\"former-$(date +%F)\\": \\"$OLD\\"}}"'
)
NEW_KEY = (
    "NAMESPACE=regroup-system SECRET=regroup-key",
    "OLD=$(kubectl -n $NAMESPACE get secret $SECRET -o jsonpath='{.data.key}')",
    "NEW=$(openssl rand -hex 24 | base64 -w0)",
    KEEP_FORMER_KEY,
)
REMOVE_FORMER_KEY = (
    "kubectl -n $NAMESPACE patch secret $SECRET --type=merge "
    """-p '{"data": {"former-2026-11-25": null}}'"""
)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server with the definitions of the Prometheus operator."""
    with ApiServer() as started:
        for plural in MONITORS:
            started.kubectl("create", "-f", definition(plural))
        yield started


@pytest.fixture
def terminal(server: ApiServer, tmp_path: Path) -> PageTerminal:
    """The shell of an administrator, in a clone."""
    for name in ("charts", "manifests"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_overlay(tmp_path, "example.com", "0123456")
    (tmp_path / "monitoring.yaml").write_text(first_job(ROOT / "docs/tasks/monitoring.md"))
    variables = {"KUBECONFIG": str(server.kubeconfig), "TZ": "UTC"}
    return PageTerminal(tmp_path, variables, (server.bin,))


def deployment(server: ApiServer) -> Any:
    return json.loads(server.kubectl("get", "deployment", "regroup", "-n", SYSTEM, "-o", "json"))


def operator_container(server: ApiServer) -> Any:
    (container,) = deployment(server)["spec"]["template"]["spec"]["containers"]
    return container


def serves(api: Api, path: str) -> bool:
    return api.request("GET", path).status == 200


def test_the_release_of_the_chart_page_is_installed_upgraded_and_uninstalled(
    server: ApiServer, terminal: PageTerminal
) -> None:
    terminal.type("helm install regroup charts/regroup -n regroup-system --create-namespace")
    upgrade = "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values"
    assert "has been upgraded" in terminal.type(upgrade)
    terminal.type("kubectl -n regroup-system scale deployment regroup --replicas=0")
    assert deployment(server)["spec"]["replicas"] == 0
    terminal.type(UNINSTALL)


def test_pages_set_values_of_a_release_that_has_own_images(
    server: ApiServer, terminal: PageTerminal
) -> None:
    """Its images stay until an upgrade names others, which keeps the values."""
    terminal.type(WITH_IMAGES, changes={"REGISTRY": "example.com", "TAG": "0123456"})
    terminal.type(
        "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
        "--set tracing.endpoint=http://otel-collector.monitoring:4318"
    )
    api = Api(server.kubeconfig)
    monitors = f"/apis/monitoring.coreos.com/v1/namespaces/{SYSTEM}"
    for plural in MONITORS:
        wait_until(plural, partial(serves, api, f"{monitors}/{plural}"), seconds=60)
    terminal.type(
        "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
        "-f monitoring.yaml"
    )
    for plural in MONITORS:
        assert api.request("GET", f"{monitors}/{plural}").body["items"]
    assert operator_container(server)["image"] == "example.com/regroup-operator:0123456"
    terminal.type(
        "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
        "--set-string image.tag=TAG,trainer.image.tag=TAG",
        changes={"TAG": "7654321"},
    )
    container = operator_container(server)
    assert container["image"] == "example.com/regroup-operator:7654321"
    assert "example.com/regroup-trainer:7654321" in json.dumps(container)
    assert "http://otel-collector.monitoring:4318" in json.dumps(container)
    terminal.type(UNINSTALL)


def test_the_overlay_of_the_page_replaces_the_former_manifests_is_upgraded_and_taken_away(
    server: ApiServer, terminal: PageTerminal, tmp_path: Path
) -> None:
    """The definition stays, and the namespace with the key."""
    former = FormerRelease(tmp_path / "former").chart.parents[1] / "manifests"
    for file in (ROOT / "manifests/namespace.yaml", former / "crd.yaml", former / "operator.yaml"):
        server.kubectl("apply", "-f", str(file))
    assert operator_container(server)["image"].endswith(":0.2.0")
    for tag in ("0123456", "7654321"):
        write_overlay(terminal.folder, "example.com", tag)
        terminal.type("kubectl apply -k overlay")
        container = operator_container(server)
        assert container["image"] == f"example.com/regroup-operator:{tag}"
        assert f"example.com/regroup-trainer:{tag}" in json.dumps(container)
    terminal.type("kubectl delete -f manifests/operator.yaml")
    assert server.kubectl("get", "deployments", "-n", SYSTEM, "-o", "name") == ""
    server.kubectl("get", "crd", "trainingjobs.regroup.dev")


def test_the_key_is_rotated_and_the_former_one_removed(
    server: ApiServer, terminal: PageTerminal
) -> None:
    terminal.type("kubectl apply -k overlay")
    make = ("create", "secret", "generic", "regroup-key", "--from-literal=key=the-former-key")
    server.kubectl(*make, "-n", SYSTEM)
    variables, *_ = NEW_KEY
    terminal.type(*NEW_KEY)
    former, key = f"former-{datetime.now(UTC):%F}", secret(server)["key"]
    assert secret(server)[former] == "the-former-key" != key
    assert len(key) >= 16

    terminal.type(variables, "kubectl -n $NAMESPACE rollout restart deployment regroup")
    annotations = deployment(server)["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in annotations
    terminal.type(
        "kubectl get trainingjobs -A -o custom-columns="
        "NS:.metadata.namespace,NAME:.metadata.name,KEY:.status.tokenKey"
    )
    terminal.type(variables, REMOVE_FORMER_KEY, changes={"former-2026-11-25": former})
    assert secret(server) == {"key": key}


def secret(server: ApiServer) -> dict[str, str]:
    """Its entries, decoded."""
    text = server.kubectl("get", "secret", "regroup-key", "-n", SYSTEM, "-o", "json")
    data = json.loads(text)["data"]
    return {name: base64.b64decode(value).decode() for name, value in data.items()}
