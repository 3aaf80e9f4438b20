"""An API server in memory, for objects of any kind, that counts what it is asked for. It checks
nothing but what the operator relies on: names, UIDs and versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
from collections import Counter
from typing import Any

import kopf
from aiohttp import web

from tests.support.async_server import AsyncServer

Json = dict[str, Any]
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/status)?"
)


class FakeClusterApi(AsyncServer):
    """An asynchronous context manager. `requests` counts by verb and resource, as `list pods`."""

    def __init__(self) -> None:
        self.version = 100
        self.requests: Counter[str] = Counter()
        self.withheld: set[str] = set()
        """Resources whose lists are refused; `all pods`: only those of all namespaces."""
        self.writes = 0
        """Requests that change something, less those for the Lease of the replica that leads."""
        self.created: dict[str, list[str]] = {}
        """Resource -> names of all that requests have ever made."""
        self.has_lost_answer = False
        self._loses = 0
        self._applies_lost = self._breaks_lost = False
        self.repeats = False
        """Whether each write comes twice, and the second one is answered."""
        self.hides: set[str] = set()
        """Resources whose watches bring nothing until `show_all`."""
        self.unreadable: set[str] = set()
        """Resources whose reads by name are refused."""
        self.held: set[str] = set()
        """Writes, as in `requests`, that are carried out when `let_through` is set, whether anybody
        still waits for the answer or not.
        """
        self.let_through = asyncio.Event()
        self.late: list[asyncio.Task[web.StreamResponse]] = []
        self._objects: dict[tuple[str, str, str], Json] = {}
        """By resource, namespace and name."""
        self._events: list[tuple[int, str, Json]] = []
        """Version, resource and line for the watches, in order."""
        self._changed = asyncio.Condition()

    def login(self) -> kopf.ConnectionInfo:
        """Its address, as credentials have it."""
        return kopf.ConnectionInfo(server=self.url)

    # --- what a test does ---------------------------------------------------------------------

    def all(self, resource: str) -> list[Json]:
        """The objects of a resource, by name."""
        found = [(key, each) for key, each in self._objects.items() if key[0] == resource]
        return [copy.deepcopy(each) for _, each in sorted(found, key=lambda pair: pair[0])]

    async def store(self, resource: str, document: Json) -> Json:
        """Create or replace an object, in the next version. Returns it."""
        metadata = document["metadata"]
        key = resource, metadata.get("namespace", ""), metadata["name"]
        kind = "MODIFIED" if key in self._objects else "ADDED"
        metadata = {"uid": f"uid-{self.version}", "generation": 1, **metadata}
        stored = {**document, "metadata": metadata}
        self._objects[key] = stored
        await self._publish(kind, resource, stored)
        return stored

    async def store_claim(self) -> None:
        """The claim of the jobs of namespace `a`."""
        metadata = {"name": "shared", "namespace": "a"}
        claim = {"metadata": metadata, "kind": "PersistentVolumeClaim"}
        modes = {"accessModes": ["ReadWriteMany"]}
        await self.store("persistentvolumeclaims", {**claim, "spec": modes})

    async def store_job(self, spec: Json) -> None:
        """Job `gpt` of namespace `a`, and its claim."""
        await self.store_claim()
        metadata = {"namespace": "a", "name": "gpt"}
        await self.store("trainingjobs", {"metadata": metadata, "spec": spec})

    async def fail(self, pod: Json) -> None:
        """The program of a worker's pod ends with an error."""
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}}
        shown = {"name": "trainer", "state": ended, "image": "a", "imageID": ""}
        status = {"phase": "Failed", "containerStatuses": [shown]}
        await self.store("pods", {**pod, "status": status})

    async def remove(self, resource: str, namespace: str, name: str) -> Json:
        """Delete an object. Returns it."""
        gone = self._objects.pop((resource, namespace, name))
        await self._publish("DELETED", resource, gone)
        return gone

    def lose_answer_at(self, number: int, *, applied: bool, breaks: bool = False) -> None:
        """Never answer the write of this number; `applied`: it is carried out all the same;
        `breaks`: the connection is closed, so that nobody waits for an answer.
        """
        self._loses, self._applies_lost, self._breaks_lost = number, applied, breaks

    async def show_all(self) -> None:
        """Let all watches bring what has happened."""
        self.hides.clear()
        async with self._changed:
            self._changed.notify_all()

    def newest(self, resource: str) -> int:
        """The version of the last change that watches of a resource may bring; 0: there is none."""
        if resource in self.hides:
            return 0
        return max((version for version, of, _ in self._events if of == resource), default=0)

    def count_held(self) -> int:
        """How many writes wait for `let_through`."""
        return sum(not write.done() for write in self.late)

    async def _publish(self, kind: str, resource: str, document: Json) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        line = {"type": kind, "object": copy.deepcopy(document)}
        self._events.append((self.version, resource, line))
        async with self._changed:
            self._changed.notify_all()

    # --- requests -----------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = _PATH.fullmatch(request.path)
        if place is None:
            return _refuse(404, "no such path")
        resource, namespace, name = place["resource"], place["namespace"] or "", place["name"]
        verb = _verb(request, name)
        self.requests[f"{verb} {resource}"] += 1
        if verb == "watch":
            return await self._watch(request, resource)
        if verb == "list":
            return self._list(request, resource, namespace)
        body: Any = await request.json() if request.can_read_body else {}
        if verb in ("create", "patch", "delete") and resource != "leases":
            self.writes += 1
            if self.writes == self._loses:
                return await self._lose(request, verb, place, body)
            if self.repeats:
                await self._write(verb, place, body)
        if f"{verb} {resource}" in self.held:
            self.late.append(asyncio.create_task(self._write_late(verb, place, body)))
            return await asyncio.shield(self.late[-1])
        return await self._write(verb, place, body)

    async def _lose(
        self, request: web.Request, verb: str, place: re.Match[str], body: Any
    ) -> web.StreamResponse:
        if self._applies_lost:
            await self._write(verb, place, body)
        self.has_lost_answer = True
        if self._breaks_lost and request.transport is not None:
            request.transport.abort()
            return web.Response()
        await asyncio.Event().wait()
        raise AssertionError

    async def _write_late(self, verb: str, place: re.Match[str], body: Any) -> web.StreamResponse:
        await self.let_through.wait()
        return await self._write(verb, place, body)

    async def _write(self, verb: str, place: re.Match[str], body: Any) -> web.StreamResponse:
        resource, namespace, name = place["resource"], place["namespace"] or "", place["name"]
        if verb == "create":
            return await self._create(resource, namespace, body)
        found = self._objects.get((resource, namespace, name or ""))
        if verb == "get" and resource in self.unreadable:
            return _refuse(403, "not yours to get")
        if found is None:
            return _refuse(404, f"{name} not found")
        if verb == "patch":
            return await self._patch(resource, found, body)
        if verb == "delete":
            return await self._delete(resource, found, body)
        return web.json_response(found)

    def _list(self, request: web.Request, resource: str, namespace: str) -> web.Response:
        if resource in self.withheld or (not namespace and f"all {resource}" in self.withheld):
            return _refuse(403, "not yours to list")
        selector = request.query.get("labelSelector", "")
        found = [
            each
            for each in self.all(resource)
            if namespace in ("", each["metadata"].get("namespace")) and _matches(each, selector)
        ]
        for each in found:
            each.pop("kind", None)  # as real lists do
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"metadata": metadata, "items": found})

    async def _watch(self, request: web.Request, resource: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        selector = request.query.get("labelSelector", "")
        only_metadata = "as=PartialObjectMetadata" in request.headers["Accept"]
        sent = int(request.query["resourceVersion"])
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: resource not in self.hides)
            for version, of, event in [event for event in self._events if event[0] > sent]:
                sent = version
                found = event["object"]
                if of == resource and _matches(found, selector):
                    shown = {"metadata": found["metadata"]} if only_metadata else found
                    line = json.dumps({**event, "object": shown}).encode()
                    with contextlib.suppress(ConnectionResetError):
                        await answer.write(line + b"\n")
            async with self._changed:
                while self.version <= sent:
                    await self._changed.wait()

    async def _create(self, resource: str, namespace: str, document: Json) -> web.Response:
        metadata = {**document["metadata"], "namespace": namespace}
        if (resource, namespace, metadata["name"]) in self._objects:
            return _refuse(409, f"{metadata['name']} exists", "AlreadyExists")
        document = {**document, "metadata": metadata}
        if resource == "services":
            document["spec"] = {"clusterIP": "198.19.0.1", **document["spec"]}
        if resource == "pods":
            document["status"] = {"phase": "Pending"}
        self.created.setdefault(resource, []).append(metadata["name"])
        return web.json_response(await self.store(resource, document), status=201)

    async def _delete(self, resource: str, found: Json, options: Json) -> web.Response:
        metadata = found["metadata"]
        if options["preconditions"]["uid"] != metadata["uid"]:
            return _refuse(409, "another UID")
        gone = await self.remove(resource, metadata["namespace"], metadata["name"])
        return web.json_response(gone)

    async def _patch(self, resource: str, found: Json, patch: list[Json]) -> web.Response:
        changed = copy.deepcopy(found)
        for change in patch:
            *parents, field = change["path"].strip("/").split("/")
            part = changed
            for parent in parents:
                part = part[parent]
            if parents == ["metadata"] and part[field] != change["value"]:
                return _refuse(409, f"another {field}")
            if change["op"] == "replace" and field not in part:
                return _refuse(422, f"doc is missing key: {change['path']}")
            part[field] = change["value"]
        return web.json_response(await self.store(resource, changed))


def _verb(request: web.Request, name: str | None) -> str:
    if request.method == "GET":
        return "get" if name else "watch" if "watch" in request.query else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _matches(document: Json, selector: str) -> bool:
    """Selectors are `key` and `key=value`, joined by commas."""
    labels = document["metadata"].get("labels", {})
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(key in labels and value in ("", labels[key]) for key, _, value in wanted)


def _refuse(status: int, message: str, reason: str = "") -> web.Response:
    return web.json_response({"message": message, "reason": reason}, status=status)
