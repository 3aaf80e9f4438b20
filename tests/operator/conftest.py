"""A real API server with the TrainingJob definition, for all tests of the operator; a namespace for each test."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf
import pytest
import yaml

from devcluster.apiserver import ApiServer
from regroup_operator.api import API_VERSION, KIND, PLURAL
from tests.support.waiting import wait_until

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """What the API server said."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        """Its complaint."""
        return str(self.body.get("message", ""))


class Api:
    """Plain requests: a test of rules wants refusals, not exceptions."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        info = kopf.ConnectionInfo(
            server=cluster["server"],
            ca_data=cluster["certificate-authority-data"],
            certificate_data=user["client-certificate-data"],
            private_key_data=user["client-key-data"],
        )
        self._tls = info.as_ssl_context()
        self._url = urlsplit(info.server)
        self.kubeconfig = kubeconfig

    def request(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Answer:
        """One request."""
        connection = http.client.HTTPSConnection(
            self._url.hostname or "", self._url.port, timeout=20, context=self._tls
        )
        headers = {"Content-Type": content, "Accept": "application/json"}
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, json.loads(text) if text.startswith("{") else {"message": text})
        finally:
            connection.close()


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test, and what tests do in it."""

    api: Api
    name: str

    def jobs(self, name: str = "") -> str:
        """Path of the TrainingJobs, or of one."""
        return f"/apis/{API_VERSION}/namespaces/{self.name}/{PLURAL}" + (f"/{name}" if name else "")

    def core(self, path: str) -> str:
        """Path of an object of the core group."""
        return f"/api/v1/namespaces/{self.name}/{path}"

    def create(self, spec: Json, name: str = "gpt") -> Answer:
        """Create a TrainingJob."""
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        return self.api.request("POST", self.jobs(), body)

    def read(self, name: str = "gpt") -> Json:
        """The TrainingJob."""
        answer = self.api.request("GET", self.jobs(name))
        assert answer.status == 200, answer.message
        return answer.body

    def replace_spec(self, spec: Json, name: str = "gpt", *, dry_run: bool = True) -> Answer:
        """Write another spec, by default only to hear what the API server says to it."""
        document = {**self.read(name), "spec": spec}
        return self.api.request("PUT", self.jobs(name) + ("?dryRun=All" if dry_run else ""), document)

    def write_status(self, status: Json, name: str = "gpt") -> Answer:
        """Write the status."""
        return self.api.request("PUT", self.jobs(name) + "/status", {**self.read(name), "status": status})


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """The API server with our definition."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        crd = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
        answer = api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert answer.status == 201, answer.message
        wait_until("the TrainingJob API", lambda: api.request("GET", f"/apis/{API_VERSION}/{PLURAL}").status == 200)
        yield api


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api) -> Namespace:
    """A fresh namespace."""
    name = f"test-{next(_numbers)}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    api.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    return Namespace(api, name)
