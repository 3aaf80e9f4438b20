"""Creates a job with its code on a cluster, so that no crash leaves a job that waits for its code,
or code without a job.

The job comes first, suspended: it owns the ConfigMap, and has no pods before that is there. It is
resumed last. A client that dies in between leaves a suspended job. The same call, with the same
name, goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from regroup.kubernetes.cluster_errors import ClusterError
from regroup_operator.api.names import DOMAIN, JOB
from regroup_operator.api.resource import API_VERSION, KIND, Object

if TYPE_CHECKING:
    from regroup.kubernetes.cluster_api import ClusterApi

CODE = f"{DOMAIN}/code"
"""Annotation of a job: the digest of all that was submitted, the code included."""
_CONFLICT = 409


def submit(api: ClusterApi, namespace: str, job: Object, code: Object) -> Object:
    """Create the job, then its ConfigMap `code`, then resume the job unless it was to be suspended.
    Returns the job. Annotation CODE shows whether a job that is there is the same.

    Raises ClusterError; a job whose code was refused is deleted again.
    """
    spec = job["spec"]
    made, is_new = _create(api, namespace, {**job, "spec": {**spec, "suspend": True}})
    name = str(made["metadata"]["name"])
    try:
        _create_code(api, namespace, _owned(code, made))
    except ClusterError:
        if is_new:
            with suppress(ClusterError):  # else it stays, suspended
                api.delete_job(namespace, name)
        raise
    if spec.get("suspend"):
        return made
    return api.patch_job(namespace, name, {"spec": {"suspend": False}}, dry_run=False)


def try_out(api: ClusterApi, namespace: str, job: Object, code: Object) -> Object:
    """Have the API server check both, and change nothing. Returns the job. Raises ClusterError."""
    api.create_config_map(namespace, code, dry_run=True)
    return api.create_job(namespace, job, dry_run=True)


def with_digest(job: Object, code: Object) -> Object:
    """The job with annotation CODE."""
    text = json.dumps([job, code], sort_keys=True, default=str)
    metadata = job["metadata"]
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    noted = {**(metadata.get("annotations") or {}), CODE: digest}
    return {**job, "metadata": {**metadata, "annotations": noted}}


def _owned(code: Object, job: Object) -> Object:
    """A ConfigMap that is the job's: it goes with the job, and nobody changes it."""
    name, metadata = job["metadata"]["name"], code["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": job["metadata"]["uid"]}
    labels = {**(metadata.get("labels") or {}), JOB: name}
    return {
        **code,
        "metadata": {**metadata, "labels": labels, "ownerReferences": [owner]},
        "immutable": True,
    }


def _create(api: ClusterApi, namespace: str, job: Object) -> tuple[Object, bool]:
    """The job, and whether it is new: else a former call with the same code was cut off."""
    try:
        return api.create_job(namespace, job, dry_run=False), True
    except ClusterError as error:
        if error.status != _CONFLICT:
            raise
        found = api.job(namespace, str(job["metadata"]["name"]))
        if not _is_unfinished(found, job):
            raise
        return found, False


def _is_unfinished(found: Object, job: Object) -> bool:
    """Whether it is the same submission, and was never resumed."""
    wanted = job["metadata"]["annotations"][CODE]
    annotations = (found.get("metadata") or {}).get("annotations") or {}
    waits = (found.get("spec") or {}).get("suspend") is True
    has_run = bool((found.get("status") or {}).get("coordinatorTerm"))
    return annotations.get(CODE) == wanted and waits and not has_run


def _create_code(api: ClusterApi, namespace: str, body: Object) -> None:
    try:
        api.create_config_map(namespace, body)
    except ClusterError as error:
        owned = error.status == _CONFLICT and _owners(
            api.config_map(namespace, str(body["metadata"]["name"]))
        )
        if not owned or owned != _owners(body):
            raise


def _owners(document: Object) -> list[str]:
    references = (document.get("metadata") or {}).get("ownerReferences") or ()
    return [str(reference.get("uid")) for reference in references]
