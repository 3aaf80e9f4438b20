"""Upgrades of a release by helm, on a real API server: the key of running jobs outlives them."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.apiserver import ApiServer
from devcluster.processes import run
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.credentials import login
from regroup_operator.controller.operator_key import read_or_make_keys
from regroup_operator.render.keyring import name_of
from tests.support.kube_api import ROOT, Api

pytestmark = pytest.mark.apiserver

CHART = ROOT / "charts/regroup"
SYSTEM = "regroup-system"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/regroup-key"
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


def test_a_key_that_the_operator_made_outlives_an_upgrade_and_a_new_installation(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm(server, "install", "regroup", CHART, "--create-namespace")
    name = key_that_the_operator_takes(server, monkeypatch)
    upgrade(server, CHART)
    helm(server, "uninstall", "regroup")
    helm(server, "install", "regroup", CHART)
    assert key_that_the_operator_takes(server, monkeypatch) == name == name_of(stored_key(server))
