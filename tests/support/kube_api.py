"""Plain requests to a Kubernetes API server, and a namespace for one test."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf
import yaml

from regroup_operator.api.resource import API_VERSION, KIND, PLURAL
from regroup_operator.observe.bounded_json import decode

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

PAGE = 250
"""Objects in a page of a list."""


@dataclass(frozen=True)
class Answer:
    """An answer of the API server."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        """Why it refused."""
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

    def request(
        self,
        method: str,
        path: str,
        body: Json | str | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """Send one request. Returns the answer, also of a refusal; what lies very deep in it is
        None. Raises OSError without an answer. A body that is a string is JSON already.
        """
        connection = http.client.HTTPSConnection(
            self._url.hostname or "", self._url.port, timeout=20, context=self._tls
        )
        headers = {"Content-Type": content, "Accept": accept}
        try:
            written = body if body is None or isinstance(body, str) else json.dumps(body)
            connection.request(method, path, body=written, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            is_object = text.startswith(b"{")
            return Answer(answer.status, decode(text) if is_object else {"message": text.decode()})
        finally:
            connection.close()

    def list_all(self, path: str) -> list[Json]:
        """The objects of a collection, in pages that each fit into an answer."""
        found: list[Json] = []
        page = self.request("GET", f"{path}?limit={PAGE}").body
        while True:
            found += page["items"]
            following = page["metadata"].get("continue", "")
            if not following:
                return found
            page = self.request("GET", f"{path}?limit={PAGE}&continue={following}").body


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
        """Create a TrainingJob. Returns the answer, also of a refusal."""
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        return self.api.request("POST", self.jobs(), body)

    def read(self, name: str = "gpt") -> Json:
        """The TrainingJob as the API server has it. Fails when there is none."""
        answer = self.api.request("GET", self.jobs(name))
        assert answer.status == 200, answer.message
        return answer.body

    def printed(self, name: str = "gpt") -> list[Json]:
        """The columns that `kubectl get -o wide` prints of a TrainingJob, each with its `value`."""
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = self.api.request("GET", self.jobs(name), accept=accept).body
        (row,) = table["rows"]
        columns = zip(table["columnDefinitions"], row["cells"], strict=True)
        return [{**column, "value": value} for column, value in columns]

    def replace_spec(self, spec: Json, name: str = "gpt", *, dry_run: bool = True) -> Answer:
        """Write another spec, by default only to see whether the API server accepts it.

        Returns the answer, also of a refusal.
        """
        document = {**self.read(name), "spec": spec}
        return self.api.request(
            "PUT", self.jobs(name) + ("?dryRun=All" if dry_run else ""), document
        )

    def write_status(self, status: Json, name: str = "gpt") -> Answer:
        """Replace the whole status. Returns the answer, also of a refusal."""
        return self.api.request(
            "PUT", self.jobs(name) + "/status", {**self.read(name), "status": status}
        )
