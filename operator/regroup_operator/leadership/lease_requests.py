"""Requests for the one Lease by which the replicas of the operator find who leads."""

from __future__ import annotations

from typing import Any

from regroup_operator.api.resource import Object
from regroup_operator.errors import NotFoundError, UnreadableError
from regroup_operator.informer.api_connection import JSON_PATCH, ApiConnection
from regroup_operator.leadership.candidacy import Lease, read_lease

_API = "coordination.k8s.io/v1"
_LABELS = {"app.kubernetes.io/name": "regroup-operator", "app.kubernetes.io/part-of": "regroup"}


class LeaseRequests:
    """The Lease `place`, which is `namespace/name`. Every method raises ClusterError."""

    def __init__(self, connection: ApiConnection, place: str) -> None:
        self._connection = connection
        self.place = place
        self._namespace, _, self._name = place.partition("/")
        self._folder = f"/apis/{_API}/namespaces/{self._namespace}/leases"

    async def read(self) -> Lease | None:
        """The Lease; None: there is none."""
        try:
            return self._lease(await self._connection.request("GET", self._path))
        except NotFoundError:
            return None

    async def write(self, present: Lease | None, spec: Object) -> Lease:
        """Give the Lease this spec, where it is as `present`, and create it where that is None.
        Raises ConflictError where it has changed. A PUT would create one that somebody deleted.
        """
        if present is None:
            return self._lease(
                await self._connection.request("POST", self._folder, self._new(spec))
            )
        checked = {"/metadata/uid": present.uid, "/metadata/resourceVersion": present.version}
        body: list[dict[str, Any]] = [
            *({"op": "replace", "path": path, "value": value} for path, value in checked.items()),
            {"op": "add", "path": "/spec", "value": spec},
        ]
        answer = await self._connection.request("PATCH", self._path, body, content=JSON_PATCH)
        return self._lease(answer)

    def _lease(self, answer: Object) -> Lease:
        try:
            return read_lease(answer)
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableError("GET", self._path, 0, "the answer is no Lease") from error

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"

    def _new(self, spec: Object) -> Object:
        metadata = {"name": self._name, "namespace": self._namespace, "labels": _LABELS}
        return {"apiVersion": _API, "kind": "Lease", "metadata": metadata, "spec": spec}
