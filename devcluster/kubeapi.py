"""A small client of the API server for devcluster itself. It uses only the standard library."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from devcluster.errors import DevclusterError

Json = dict[str, Any]


class RequestRefusedError(DevclusterError):
    """The API server answered with an error status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: the API server answered {status}: {body[:300]}")
        self.status = status


@dataclass(frozen=True)
class KubeApi:
    """The address of an API server and the files for authentication."""

    address: str
    port: int
    authority: Path
    certificate: Path
    key: Path

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = 10
    ) -> Json:
        """Send one request and return the response.

        Raises RequestRefusedError for an error status, and OSError without a response within
        `seconds`.
        """
        connection = http.client.HTTPSConnection(
            self.address, self.port, timeout=seconds, context=self._tls
        )
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Accept": "application/json", "Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 400:
            raise RequestRefusedError(method, path, response.status, text)
        parsed: Json = json.loads(text) if text.startswith("{") else {"text": text}
        return parsed

    def watch(self, path: str, resource_version: str, seconds: float) -> Iterator[Json]:
        """Events of a collection since `resource_version`, for at most `seconds`."""
        connection = http.client.HTTPSConnection(
            self.address, self.port, timeout=seconds + 10, context=self._tls
        )
        try:
            query = f"?watch=1&resourceVersion={resource_version}&timeoutSeconds={seconds:.0f}"
            connection.request("GET", path + query, headers={"Accept": "application/json"})
            response = connection.getresponse()
            if response.status >= 400:
                raise RequestRefusedError("WATCH", path, response.status, response.read().decode())
            for line in response:
                yield json.loads(line)
        finally:
            connection.close()

    def answers(self, path: str) -> bool:
        """Whether a GET of `path` succeeds now."""
        try:
            self.request("GET", path, seconds=2)
        except (OSError, http.client.HTTPException, RequestRefusedError):
            return False
        return True

    def nodes_ready(self) -> dict[str, bool]:
        """Every node's name, and whether its condition Ready is True."""
        items = self.request("GET", "/api/v1/nodes")["items"]
        return {item["metadata"]["name"]: _is_ready(item) for item in items}


def _is_ready(node: Json) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
