"""Plain requests to a Kubernetes API server, and a namespace for one test."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf
import yaml

from regroup_operator.api.resource import API_VERSION, KIND, PLURAL
from regroup_operator.observe.bounded_json import decode
from tests.support.waiting import wait_until

Json = dict[str, Any]
IDLE_SECONDS = 20.0
"""An older connection is not used again: the API server closes one that is idle for 90 seconds."""
ROOT = Path(__file__).resolve().parents[2]

PAGE = 250
"""Objects in a page of a list."""


@dataclass(frozen=True)
class Answer:
    """An answer of the API server."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)

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
        self._kept: http.client.HTTPSConnection | None = None
        self._last_use = 0.0

    @classmethod
    @contextmanager
    def kept(cls, kubeconfig: Path) -> Iterator[Api]:
        """Inside, requests share one connection, for one thread at a time."""
        api = cls(kubeconfig)
        api._kept = api._connect(timeout=60)
        try:
            yield api
        finally:
            api._kept.close()

    def request(
        self,
        method: str,
        path: str,
        body: Json | str | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        user: str = "",
    ) -> Answer:
        """Send one request, as `user` where that is given. Returns the answer, also of a refusal;
        what lies very deep in it is None. Raises OSError without an answer. A body that is a string
        is JSON already.
        """
        headers = {"Content-Type": content, "Accept": accept}
        headers |= {"Impersonate-User": user} if user else {}
        written = body if body is None or isinstance(body, str) else json.dumps(body)
        if self._kept is None:
            with contextlib.closing(self._connect(timeout=20)) as connection:
                connection.request(method, path, body=written, headers=headers)
                return _answer(connection.getresponse())
        if time.monotonic() - self._last_use > IDLE_SECONDS:
            self._kept.close()
        self._last_use = time.monotonic()
        try:
            self._kept.request(method, path, body=written, headers=headers)
            return _answer(self._kept.getresponse())
        except (OSError, http.client.HTTPException):
            self._kept.close()  # the next request connects again
            raise

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

    def watch(self, path: str) -> Watch:
        """What happens to the objects of a path, from those that there are."""
        return Watch(self._connect(timeout=None), path)

    def _connect(self, timeout: float | None) -> http.client.HTTPSConnection:
        host, port = self._url.hostname or "", self._url.port
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)


def _answer(response: http.client.HTTPResponse) -> Answer:
    text = response.read()
    is_object = text.startswith(b"{")
    body = decode(text) if is_object else {"message": text.decode()}
    return Answer(response.status, body, dict(response.headers))


class Watch:
    """A stream of events about the objects of a path. It ends with `close`."""

    def __init__(self, connection: http.client.HTTPSConnection, path: str) -> None:
        self._connection = connection
        connection.request("GET", f"{path}?watch=1")
        self._socket = connection.sock
        self._answer = connection.getresponse()

    def __iter__(self) -> Iterator[Json]:
        """Yield each event once it comes. Raises OSError when the API server ends the stream."""
        with contextlib.closing(self._connection), contextlib.closing(self._answer):
            for line in self._answer:
                yield decode(line)

    def close(self) -> None:
        """End the stream, also for a thread that waits for an event."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def install_definition(api: Api) -> None:
    """Create the definition of TrainingJobs, and wait until the API server serves it."""
    crd = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
    answer = api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert answer.status == 201, answer.message
    wait_until(
        "the TrainingJob API",
        lambda: api.request("GET", f"/apis/{API_VERSION}/{PLURAL}").status == 200,
    )


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test, and what tests do in it."""

    api: Api
    name: str

    @classmethod
    def make(cls, api: Api, name: str) -> Namespace:
        """Create a namespace, with the service account that pods need."""
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = {"metadata": {"name": "default"}}
        api.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        return cls(api, name)

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
