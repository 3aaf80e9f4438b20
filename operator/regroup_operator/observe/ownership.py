"""Whose an object is that has the name of one of a job's own."""

from __future__ import annotations

from collections.abc import Sequence

from regroup_operator.api import names
from regroup_operator.api.resource import KIND, Object
from regroup_operator.observe.observed import AnyJob, JobObject


def own(document: Object | None, job: JobObject) -> Object | None:
    """The object, where it is this job's."""
    return document if document and _is_ours(document, job) else None


def name_conflict(job: AnyJob, named: Sequence[Object | None], claim: Object | None) -> str:
    """Which of the objects that have the names of the job's own is not its own; empty: none is.

    The claim of volumeClaimTemplate has no owner, since it outlives the job: its label says whose
    it is.
    """
    others = [document for document in named if document and not _is_ours(document, job)]
    if claim and _makes_claim(job) and _label_job(claim) != job.name:
        others.append(claim)
    return _explain(others[0], job) if others else ""


def foreign(kind: str, name: str) -> str:
    """The sentence about an object that is not the job's and has the name of one of its own."""
    return (
        f"{kind} {name} is not of this job, and the job needs one of that name: nothing of it is "
        "changed (rename or delete it, or give the job another name)"
    )


def _is_ours(document: Object, job: JobObject) -> bool:
    owners = document["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == job.uid for owner in owners)


def _explain(document: Object, job: JobObject) -> str:
    kind, name = document["kind"], document["metadata"]["name"]
    owners = document["metadata"].get("ownerReferences", [])
    if any((owner["kind"], owner["name"]) == (KIND, job.name) for owner in owners):
        return f"{kind} {name} is still that of an earlier job of this name: it is about to go"
    return foreign(kind, name)


def _label_job(document: Object) -> str:
    return str(document["metadata"].get("labels", {}).get(names.JOB, ""))


def _makes_claim(job: AnyJob) -> bool:
    return job.storage is not None and job.storage.volume_claim_template is not None
