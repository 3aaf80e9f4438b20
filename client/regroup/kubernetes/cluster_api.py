"""The requests of `kubectl trainingjob`, sent by the official client of Kubernetes.

Objects are returned as JSON has them. Every method raises ClusterError.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any

from regroup.kubernetes.cluster_errors import ClusterError, Request, refusal, unreachable
from regroup.kubernetes.kubeconfig import Target
from regroup.kubernetes.pod_channels import CommandOutput, CommandStream, PodCommand, PodPort
from regroup.kubernetes.pod_record import PodRecord
from regroup_operator.api.names import selector
from regroup_operator.api.resource import GROUP, PLURAL, VERSION, Object
from regroup_operator.observe.bounded_json import MOST_BYTES, decode

CONNECT_SECONDS = 10.0
PAGE = 100
"""Objects that are read at once."""
_AGREES_SECONDS = 2.0
LONGEST_LINE = 8 * 1024 * 1024
"""Bytes. A longer line of a log comes in pieces."""
_CUSTOM = {"group": GROUP, "version": VERSION, "plural": PLURAL}


@dataclass(frozen=True)
class LogQuery:
    """Which part of a container's log."""

    follow: bool = False
    previous: bool = False
    """Of the container before its last restart."""
    tail_lines: int | None = None
    since_seconds: int | None = None
    limit_bytes: int | None = None
    """The log is cut after so many."""


class ServerClock:
    """The time of the API server, by the `Date` of its answers: this machine's may be wrong, and
    what is in objects is by clocks of the cluster.
    """

    def __init__(self) -> None:
        self._read: tuple[datetime, float] | None = None
        """A time of the server, and what the monotonic clock of this machine had then."""

    def on_answer(self, date: str | None) -> None:
        """An answer had this header. It counts whole seconds, so that one that agrees changes
        nothing: the time between two looks is exact.
        """
        try:
            time = parsedate_to_datetime(date or "").astimezone(UTC)
        except (ValueError, OverflowError):
            return
        if self._read is None or abs((time - self.now()).total_seconds()) > _AGREES_SECONDS:
            self._read = time, monotonic()

    def now(self) -> datetime:
        """That of this machine before the first answer."""
        if self._read is None:
            return datetime.now(UTC)
        time, since = self._read
        return time + timedelta(seconds=monotonic() - since)


class ClusterApi:
    """A connection to one API server, as the user of the kubeconfig."""

    def __init__(self, target: Target, timeout_seconds: float = 30.0) -> None:
        """Raises ClusterError when the kubeconfig or its credentials cannot be used."""
        from kubernetes import client

        logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are no news
        self._api = target.connect()
        self._custom = client.CustomObjectsApi(self._api)
        self._timeout = timeout_seconds
        self._clock = ServerClock()

    @functools.cached_property
    def _core(self) -> Any:
        """Imported when it is needed: that takes longer than all the rest."""
        from kubernetes.client import CoreV1Api

        return CoreV1Api(self._api)

    def close(self) -> None:
        """Close its connections; no other method may be called afterwards."""
        self._api.close()

    def now(self) -> datetime:
        """The time of the API server, as far as it has answered yet."""
        return self._clock.now()

    # --- TrainingJobs -----------------------------------------------------------------------------

    def job(self, namespace: str, name: str) -> Object:
        """A TrainingJob as the API server has it."""
        asked = Request("get", PLURAL, namespace, name)
        return self._ask(
            asked, self._custom.get_namespaced_custom_object, **self._named(namespace, name)
        )

    def jobs(self, namespace: str | None, label_selector: str = "") -> list[Object]:
        """The TrainingJobs of a namespace, or of all."""
        chosen = {"label_selector": label_selector} if label_selector else {}
        if namespace is None:
            asked = Request("list", PLURAL)
            return self._list(asked, self._custom.list_cluster_custom_object, **_CUSTOM, **chosen)
        asked = Request("list", PLURAL, namespace)
        call = self._custom.list_namespaced_custom_object
        return self._list(asked, call, namespace=namespace, **_CUSTOM, **chosen)

    def create_job(self, namespace: str, document: Object, *, dry_run: bool) -> Object:
        """Create a TrainingJob; `dry_run`: only ask whether the API server would."""
        asked = Request("create", PLURAL, namespace, str(document["metadata"]["name"]))
        call = self._custom.create_namespaced_custom_object
        options = {**_CUSTOM, "field_validation": "Strict", **_dry(dry_run)}
        return self._ask(asked, call, namespace=namespace, body=document, **options)

    def patch_job(self, namespace: str, name: str, patch: Object, *, dry_run: bool) -> Object:
        """Merge `patch` into a TrainingJob."""
        asked = Request("patch", PLURAL, namespace, name)
        call = self._custom.patch_namespaced_custom_object
        return self._ask(asked, call, **self._named(namespace, name), body=patch, **_dry(dry_run))

    def scale_job(self, namespace: str, name: str, replicas: int, *, dry_run: bool) -> Object:
        """Set the number of workers. Returns the Scale."""
        asked = Request("patch", f"{PLURAL}/scale", namespace, name)
        call = self._custom.patch_namespaced_custom_object_scale
        patch = {"spec": {"replicas": replicas}}
        return self._ask(asked, call, **self._named(namespace, name), body=patch, **_dry(dry_run))

    def delete_job(self, namespace: str, name: str) -> None:
        """Delete a TrainingJob; what it owns follows."""
        asked = Request("delete", PLURAL, namespace, name)
        call = self._custom.delete_namespaced_custom_object
        self._ask(asked, call, **self._named(namespace, name))

    def watch_job(
        self, namespace: str, name: str, version: str, seconds: float
    ) -> Iterator[tuple[str, Object]]:
        """Yield what happens to a TrainingJob after the resource version, for so long: ADDED,
        MODIFIED or DELETED, and the object; ERROR when the version is too old.
        """
        asked = Request("watch", PLURAL, namespace, name)
        options = {
            **_CUSTOM,
            "namespace": namespace,
            "field_selector": f"metadata.name={name}",
            "resource_version": version,
            "watch": True,
            "timeout_seconds": max(1, round(seconds)),
            "_request_timeout": (CONNECT_SECONDS, seconds + self._timeout),
        }
        for line in self._lines(asked, self._custom.list_namespaced_custom_object, **options):
            event = _object(asked, line)
            yield str(event.get("type")), event.get("object") or {}

    # --- what belongs to them ---------------------------------------------------------------------

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods of a job, of all roles."""
        asked = Request("list", "pods", namespace)
        call = self._core.list_namespaced_pod
        return self._list(asked, call, namespace=namespace, label_selector=selector(job))

    def events(self, namespace: str, field_selector: str = "") -> list[Object]:
        """Events of a namespace; `field_selector` chooses among them, as in kubectl."""
        asked = Request("list", "events", namespace)
        call = self._core.list_namespaced_event
        return self._list(asked, call, namespace=namespace, field_selector=field_selector or None)

    def node(self, name: str) -> Object:
        """A node, which the user may lack the right to read."""
        return self._ask(Request("get", "nodes", name=name), self._core.read_node, name=name)

    def namespace(self, name: str) -> Object:
        """A namespace with its labels, which the user may lack the right to read."""
        asked = Request("get", "namespaces", name=name)
        return self._ask(asked, self._core.read_namespace, name=name)

    def quotas(self, namespace: str) -> list[Object]:
        """The ResourceQuotas of a namespace, with what is used of each."""
        asked = Request("list", "resourcequotas", namespace)
        return self._list(asked, self._core.list_namespaced_resource_quota, namespace=namespace)

    def lease(self, namespace: str, name: str) -> Object:
        """Who holds a Lease, and when it was renewed last, as the API server has it."""
        asked = Request("get", "leases", namespace, name)
        where = {"group": "coordination.k8s.io", "version": "v1", "plural": "leases"}
        call = self._custom.get_namespaced_custom_object
        return self._ask(asked, call, namespace=namespace, name=name, **where)

    def server_version(self) -> str:
        """The version of Kubernetes, as v1.30.0."""
        from kubernetes.client import VersionApi

        found = self._ask(Request("get", "/version"), VersionApi(self._api).get_code)
        return str(found.get("gitVersion", "unknown"))

    def groups(self) -> list[str]:
        """The groups of APIs that the cluster serves."""
        from kubernetes.client import ApisApi

        found = self._ask(Request("get", "/apis"), ApisApi(self._api).get_api_versions)
        return [str(group.get("name")) for group in found.get("groups") or ()]

    def may(self, namespace: str, verb: str, resource: str) -> bool:
        """Whether the user may do this with all objects of a kind in a namespace."""
        from kubernetes.client import AuthorizationV1Api

        name, _, part = resource.partition("/")
        group = GROUP if name == PLURAL else ""
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
        spec = {"resourceAttributes": {**attributes, "subresource": part}}
        asked = Request("create", "selfsubjectaccessreviews")
        call = AuthorizationV1Api(self._api).create_self_subject_access_review
        found = self._ask(asked, call, body={"spec": spec})
        return (found.get("status") or {}).get("allowed") is True

    def nodes(self) -> list[Object]:
        """The nodes of the cluster, read page by page."""
        return self._list(Request("list", "nodes"), self._core.list_node)

    def claim(self, namespace: str, name: str) -> Object:
        """A PersistentVolumeClaim with its status: whether it is bound, and to what."""
        asked = Request("get", "persistentvolumeclaims", namespace, name)
        call = self._core.read_namespaced_persistent_volume_claim
        return self._ask(asked, call, namespace=namespace, name=name)

    def monitoring_objects(self, plural: str, label_selector: str = "") -> list[Object]:
        """Objects of the Prometheus operator, of all namespaces."""
        where = {"group": "monitoring.coreos.com", "version": "v1", "plural": plural}
        chosen = {"label_selector": label_selector} if label_selector else {}
        call = self._custom.list_cluster_custom_object
        return self._list(Request("list", plural), call, **where, **chosen)

    def config_map(self, namespace: str, name: str) -> Object:
        """A ConfigMap with its data."""
        asked = Request("get", "configmaps", namespace, name)
        call = self._core.read_namespaced_config_map
        return self._ask(asked, call, namespace=namespace, name=name)

    def create_config_map(self, namespace: str, body: Object, *, dry_run: bool = False) -> None:
        """Create a ConfigMap; `dry_run`: only ask whether the API server would."""
        asked = Request("create", "configmaps", namespace, str(body["metadata"]["name"]))
        call = self._core.create_namespaced_config_map
        self._ask(asked, call, namespace=namespace, body=body, **_dry(dry_run))

    def pod(self, namespace: str, name: str) -> Object:
        """A pod of any role, by its full name."""
        asked = Request("get", "pods", namespace, name)
        return self._ask(asked, self._core.read_namespaced_pod, namespace=namespace, name=name)

    def create_pod(self, namespace: str, body: Object) -> None:
        """Create a pod. Nothing is returned: its node may refuse it later."""
        asked = Request("create", "pods", namespace, str(body["metadata"]["name"]))
        self._ask(asked, self._core.create_namespaced_pod, namespace=namespace, body=body)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod by force: the object goes at once, and its node kills the containers."""
        asked = Request("delete", "pods", namespace, name)
        call = self._core.delete_namespaced_pod
        self._ask(asked, call, namespace=namespace, name=name, grace_period_seconds=0)

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        """Yield the lines of a container's log; with `follow` until the container ends, however
        long it has no new line.
        """
        asked = Request("get", "pods/log", namespace, pod)
        options: dict[str, Any] = {
            "namespace": namespace,
            "name": pod,
            "container": container,
            "follow": query.follow,
            "previous": query.previous,
            "tail_lines": query.tail_lines,
            "since_seconds": query.since_seconds,
            "limit_bytes": query.limit_bytes,
        }
        if not query.follow:
            options["_request_timeout"] = (CONNECT_SECONDS, self._timeout)
        for line in self._lines(asked, self._core.read_namespaced_pod_log, **options):
            yield line.decode(errors="backslashreplace")

    def run_in_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> CommandOutput:
        """Run a command in the main container of a pod, for so long at most. Threads may share the
        connection for it.
        """
        return PodCommand(namespace, pod.name, pod.container, words).run(self._api, seconds)

    def stream_from_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> AbstractContextManager[CommandStream]:
        """As run_in_pod, for standard output of any size."""
        return PodCommand(namespace, pod.name, pod.container, words).streamed(self._api, seconds)

    def get_of_pod(self, namespace: str, pod: str, port: int, path: str, seconds: float) -> str:
        """What a port of a pod answers to GET, within so long. Threads may share the connection."""
        return PodPort(namespace, pod, port).get(self._api, path, seconds)

    # --- how --------------------------------------------------------------------------------------

    @staticmethod
    def _named(namespace: str, name: str) -> dict[str, str]:
        return {**_CUSTOM, "namespace": namespace, "name": name}

    def _ask(self, asked: Request, call: Callable[..., Any], **options: Any) -> Object:
        with self._explained(asked):
            timeout = (min(CONNECT_SECONDS, self._timeout), self._timeout)
            answer = call(_preload_content=False, _request_timeout=timeout, **options)
            self._clock.on_answer(answer.headers.get("Date"))
            return _object(asked, answer.data)

    def _list(self, asked: Request, call: Callable[..., Any], **options: Any) -> list[Object]:
        """All pages of a collection."""
        found: list[Object] = []
        following: dict[str, str] = {}
        while True:
            page = self._ask(asked, call, limit=PAGE, **options, **following)
            found += [item for item in page.get("items") or () if isinstance(item, dict)]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            following = {"_continue": token}

    def _lines(self, asked: Request, call: Callable[..., Any], **options: Any) -> Iterator[bytes]:
        """Yield each line of an answer once it comes."""
        with self._explained(asked):
            response = call(_preload_content=False, **options)
            try:
                yield from lines_of(response.stream(decode_content=True))
            finally:
                response.close()

    @contextmanager
    def _explained(self, asked: Request) -> Iterator[None]:
        """Raise what the client raises as a ClusterError."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise refusal(asked, error.status or 0, error.body) from None
        except (HTTPError, OSError) as error:
            why = getattr(error, "reason", None) or error
            raise unreachable(self._api.configuration.host, why) from None


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dry_run": "All"} if dry_run else {}


def _object(asked: Request, text: bytes) -> Object:
    """What lies very deep in it is None: a tenant may write anything into a job.

    Raises ClusterError for what is no object in JSON, as a proxy may answer.
    """
    try:
        value = decode(text) if len(text) <= MOST_BYTES else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ClusterError(
            f"cannot {asked}: the answer is no object in JSON: is the server of --context an API "
            "server?"
        )
    return value


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Each line of a stream once it comes. What is longer than LONGEST_LINE comes in parts."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest
