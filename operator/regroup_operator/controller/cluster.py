"""What the operator asks of the API server, one method a request.

Reads are consistent (no resourceVersion).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from regroup_operator.api import names
from regroup_operator.api.resource import API_VERSION, PLURAL, Object
from regroup_operator.errors import (
    ClusterError,
    ConflictError,
    NotFoundError,
    ObjectConflictError,
    UnreadableObjectError,
)
from regroup_operator.informer.api_connection import JSON_PATCH, ApiConnection, Login
from regroup_operator.informer.collection import Collection, pages
from regroup_operator.informer.object_cache import Seen
from regroup_operator.informer.pod_lists import LARGE_LIST_BYTES, ListTurns
from regroup_operator.informer.write_guard import Guard, unguarded
from regroup_operator.observe.observed import Identity
from regroup_operator.observe.ownership import foreign
from regroup_operator.render.workload import TRAFFIC_POLICY
from regroup_trainer.protocol.message import quote

T = TypeVar("T")
ALREADY_EXISTS = "AlreadyExists"
"""Reason of a 409 that means that the name is taken. Others pass, such as that of a quota."""
MOST_POD_BYTES = 32 * 1024 * 1024
"""Of what is kept of one job's pods in a list, about. 4,096 ordinary ones take a third of it."""
EVENTS_READ = 50
"""Of one pod. One without containers has about five, each of them repeated."""

_CORE = "/api/v1"
_POLICY = "/apis/policy/v1"
_NETWORKING = "/apis/networking.k8s.io/v1"


def _folder(api: str, namespace: str, kind: str) -> str:
    return f"{api}/namespaces/{_segment(namespace)}/{kind}"


def _collection(api: str, namespace: str | None, kind: str) -> str:
    return f"{api}/{kind}" if namespace is None else _folder(api, namespace, kind)


def jobs_path(namespace: str | None) -> str:
    """The path of the TrainingJobs of a namespace; None: of all."""
    return _collection(f"/apis/{API_VERSION}", namespace, PLURAL)


def pods_path(namespace: str | None) -> str:
    """The path of the pods of a namespace; None: of all."""
    return _collection(_CORE, namespace, "pods")


def services_path(namespace: str | None) -> str:
    """The path of the Services of a namespace; None: of all."""
    return _collection(_CORE, namespace, "services")


def policies_path(namespace: str | None) -> str:
    """The path of the NetworkPolicies of a namespace; None: of all."""
    return _collection(_NETWORKING, namespace, "networkpolicies")


def budgets_path(namespace: str | None) -> str:
    """The path of the PodDisruptionBudgets of a namespace; None: of all."""
    return _collection(_POLICY, namespace, "poddisruptionbudgets")


def nodes_path() -> str:
    """The path of the nodes, which have no namespace."""
    return f"{_CORE}/nodes"


def _job_path(namespace: str, name: str) -> str:
    return f"{jobs_path(namespace)}/{_segment(name)}"


def _core(namespace: str, kind: str) -> str:
    return _folder(_CORE, namespace, kind)


def _segment(name: str) -> str:
    """A name as a part of a path. Raises ValueError for what could lead to another path."""
    if not names.is_object_name(name):
        raise ValueError(f"{quote(name)} cannot be the name of an object")
    return name


class Cluster:
    """The requests that the operator sends to the API server. An asynchronous context manager.

    Reading an object returns None where there is none of that name, or where none can have it.
    Every method raises ClusterError when the API server does not answer, or refuses.

    No method takes over an object that another has made. `create_...` raises ObjectConflictError
    where the name is taken; `change_...` changes exactly the object, in the state, that was read,
    and raises ConflictError where that is gone or has changed.
    """

    def __init__(self, login: Login, guard: Guard = unguarded) -> None:
        self.connection = ApiConnection(login, guard)
        self._large_lists = ListTurns()

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.connection.__aexit__(kind, error, traceback)

    # --- reading ----------------------------------------------------------------------------------

    async def job(self, namespace: str, name: str) -> Object | None:
        """The TrainingJob with its status."""
        return await self._get(jobs_path(namespace), name)

    async def pods(
        self, namespace: str, selector: str, read: Callable[[Object], Seen[T]]
    ) -> tuple[list[Seen[T]], str]:
        """All pods that a label selector matches, as `read` has them, and the version of the list.
        Pods may have a megabyte each: one page of them is held at a time, and of large lists few
        until the task ends that asks. Raises UnreadableObjectError for a pod that cannot be read,
        which would be taken for missing, and where more than MOST_POD_BYTES would be kept.
        """
        folder = _core(namespace, "pods")
        found: list[Seen[T]] = []
        size, version = 0, ""
        async for page in pages(Collection(self.connection, folder, selector=selector)):
            if page.unreadable or page.is_partial:
                name = page.unreadable or page.objects[0]["metadata"]["name"]
                raise UnreadableObjectError.pod(folder, name)
            for document in page.objects:
                seen = read(document)
                size += seen.size
                if size > MOST_POD_BYTES:
                    raise UnreadableObjectError.pods(folder, MOST_POD_BYTES)
                found.append(seen)
            page.objects.clear()  # decoded, they take ten times as much as the answer
            if size > LARGE_LIST_BYTES:
                await self._turn_of_list(folder, namespace)
            version = page.version
        return found, version

    async def _turn_of_list(self, folder: str, namespace: str) -> None:
        try:
            await self._large_lists.take(namespace)
        except TimeoutError as error:
            put_off = "this large list is put off: others are held by rounds"
            raise ClusterError("GET", folder, 0, put_off) from error

    async def pod(self, namespace: str, name: str) -> Object | None:
        """One pod, whatever labels it has. It is listed: the operator has no right to get pods."""
        query = {"fieldSelector": f"metadata.name={_segment(name)}", "limit": "1"}
        answer = await self.connection.request("GET", _core(namespace, "pods"), query=query)
        return next(iter(answer.get("items") or ()), None)

    async def service(self, namespace: str, name: str) -> Object | None:
        """A Service, such as the one in front of a job's coordinator."""
        return await self._get(services_path(namespace), name)

    async def network_policy(self, namespace: str, name: str) -> Object | None:
        """The NetworkPolicy that isolates the pods of a job."""
        return await self._get(policies_path(namespace), name)

    async def disruption_budget(self, namespace: str, name: str) -> Object | None:
        """The PodDisruptionBudget of a job's workers."""
        return await self._get(budgets_path(namespace), name)

    async def claim(self, namespace: str, name: str) -> Object | None:
        """The PersistentVolumeClaim that holds a job's checkpoints."""
        return await self._get(_core(namespace, "persistentvolumeclaims"), name)

    async def secret(self, namespace: str, name: str) -> Object | None:
        """The Secret with the operator's own key. Those of jobs are never read."""
        return await self._get(_core(namespace, "secrets"), name)

    async def pod_events(self, namespace: str, uid: str) -> list[Object]:
        """The events of a pod that has just been made: at most EVENTS_READ."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(EVENTS_READ)}
        answer = await self.connection.request("GET", _core(namespace, "events"), query=query)
        return list(answer.get("items") or ())

    async def node(self, name: str) -> Object | None:
        """A node, with its conditions and taints."""
        return await self._get(nodes_path(), name)

    async def node_lease(self, name: str) -> Object | None:
        """The lease that a kubelet renews every 10 s."""
        folder = _folder("/apis/coordination.k8s.io/v1", "kube-node-lease", "leases")
        return await self._get(folder, name)

    async def may(self, verb: str, group: str, resource: str, namespace: str = "") -> bool:
        """Whether the operator has a right (SelfSubjectAccessReview)."""
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.connection.request(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review
        )
        return bool(answer["status"]["allowed"])

    # --- writing ----------------------------------------------------------------------------------

    async def change_status(
        self, namespace: str, name: str, status: Object, present: Identity
    ) -> Object:
        """Write the status of exactly the TrainingJob that was read, and nothing else of it.
        Returns the job. Raises ConflictError when the object has changed since.
        """
        body = [*_checks(present), {"op": "add", "path": "/status", "value": status}]
        path = _job_path(namespace, name) + "/status"
        return await self.connection.request("PATCH", path, body, content=JSON_PATCH)

    async def create_pod(self, document: Object) -> Object:
        """Create a pod. Returns it. Raises ObjectConflictError where the name is taken."""
        return await self._create_own(_core(document["metadata"]["namespace"], "pods"), document)

    async def create_secret(self, document: Object) -> None:
        """Create a Secret unless it exists. The name of a job's contains the job's UID."""
        await self._create_once(_core(document["metadata"]["namespace"], "secrets"), document)

    async def create_claim(self, document: Object) -> None:
        """Create a PersistentVolumeClaim. Raises ObjectConflictError where the name is taken."""
        await self._create_own(
            _core(document["metadata"]["namespace"], "persistentvolumeclaims"), document
        )

    async def create_event(self, document: Object) -> None:
        """Create an Event unless there is one of that name: it is the same event."""
        await self._create_once(_core(document["metadata"]["namespace"], "events"), document)

    async def create_service(self, document: Object) -> Object:
        """The Service as created. Raises ObjectConflictError where the name is taken."""
        return await self._create_own(services_path(_namespace(document)), document)

    async def change_service(self, document: Object, present: Identity) -> Object:
        """Give the Service that was read the selector, the ports and the traffic policy of
        `document`. Returns it.
        """
        folder, fields = services_path(_namespace(document)), ("selector", "ports", TRAFFIC_POLICY)
        return await self._change(folder, document, present, fields)

    async def delete_service(self, namespace: str, name: str, present: Identity) -> None:
        """Delete exactly the Service that was read, unless it has changed since."""
        await self._delete_present(services_path(namespace), name, present)

    async def create_network_policy(self, document: Object) -> Object:
        """The NetworkPolicy as created. Raises ObjectConflictError where the name is taken."""
        return await self._create_own(policies_path(_namespace(document)), document)

    async def change_network_policy(self, document: Object, present: Identity) -> Object:
        """Give the NetworkPolicy that was read the spec of `document`. Returns it."""
        return await self._change(policies_path(_namespace(document)), document, present, ())

    async def delete_network_policy(self, namespace: str, name: str, present: Identity) -> None:
        """Delete exactly the NetworkPolicy that was read, unless it has changed since."""
        await self._delete_present(policies_path(namespace), name, present)

    async def create_disruption_budget(self, document: Object) -> Object:
        """Create a PodDisruptionBudget. Returns it."""
        return await self._create_own(budgets_path(_namespace(document)), document)

    async def change_disruption_budget(self, document: Object, present: Identity) -> Object:
        """Give the PodDisruptionBudget that was read the spec of `document`. Returns it."""
        return await self._change(budgets_path(_namespace(document)), document, present, ())

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object:
        """Delete exactly this pod; one that is gone, or another of its name, is left alone. Returns
        the pod as it was deleted or will be; nothing of one that was left alone.
        """
        options: Object = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._delete(f"{_core(namespace, 'pods')}/{_segment(name)}", options)

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this TrainingJob and all that it owns."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._delete(_job_path(namespace, name), options)

    # --- requests ---------------------------------------------------------------------------------

    async def _get(self, folder: str, name: str) -> Object | None:
        if not names.is_object_name(name):
            return None
        try:
            return await self.connection.request("GET", f"{folder}/{name}")
        except NotFoundError:
            return None

    async def _create_once(self, path: str, document: Object) -> None:
        try:
            await self.connection.request("POST", path, document)
        except ConflictError as error:
            if error.reason != ALREADY_EXISTS:
                raise

    async def _create_own(self, path: str, document: Object) -> Object:
        try:
            return await self.connection.request("POST", path, document)
        except ConflictError as error:
            if error.reason != ALREADY_EXISTS:
                raise
            raise ObjectConflictError(
                foreign(document["kind"], document["metadata"]["name"])
            ) from error

    async def _change(
        self, folder: str, document: Object, present: Identity, fields: tuple[str, ...]
    ) -> Object:
        """Replace these fields of the spec, or all of it, in the one request that also checks that
        this is the object that was read. Another UID or version answers 409. A field that somebody
        has removed is there again.
        """
        spec = document["spec"]
        changes = {f"/spec/{field}": spec[field] for field in fields} or {"/spec": spec}
        replaced = [{"op": "add", "path": at, "value": value} for at, value in changes.items()]
        path = f"{folder}/{_segment(document['metadata']['name'])}"
        body = [*_checks(present), *replaced]
        return await self.connection.request("PATCH", path, body, content=JSON_PATCH)

    async def _delete_present(self, folder: str, name: str, present: Identity) -> None:
        known = {"uid": present.uid, "resourceVersion": present.version}
        await self._delete(f"{folder}/{_segment(name)}", {"preconditions": known})

    async def _delete(self, path: str, options: Object) -> Object:
        try:
            return await self.connection.request(
                "DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options}
            )
        except (NotFoundError, ConflictError):
            return {}


def _namespace(document: Object) -> str:
    return str(document["metadata"]["namespace"])


def _checks(present: Identity) -> list[Object]:
    """The parts of a JSON patch that apply only to this object in this state."""
    known = {"/metadata/uid": present.uid, "/metadata/resourceVersion": present.version}
    return [{"op": "replace", "path": path, "value": value} for path, value in known.items()]
