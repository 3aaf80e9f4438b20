"""The operator's errors. Their messages name the object, the value and what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Self


class OperatorError(Exception):
    """Base of all."""


class SettingsError(OperatorError):
    """The operator's own configuration is wrong."""


class KeyMissingError(OperatorError):
    """A job was started with a key that the operator no longer has."""


class TemplateError(OperatorError):
    """spec.template sets a reserved field, or cannot be merged."""


class ClusterError(OperatorError):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, message: str, reason: str = "") -> None:
        answer = f"{status} {message}" if status else message  # 0: there was no answer
        super().__init__(f"{method} {path}: {answer}")
        self.status = status
        self.message = message
        self.reason = reason
        """As Kubernetes has it, such as AlreadyExists."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: there was no answer, 429 or 5xx."""
        return self.status in (0, HTTPStatus.TOO_MANY_REQUESTS) or self.status >= 500


class NotFoundError(ClusterError):
    """404: there is no such object."""


class ConflictError(ClusterError):
    """409: the name is taken, or the object changed since it was read."""


class ExpiredError(ClusterError):
    """410: the version, or the token of the next page, is too old."""

    token = ""
    """With it the list goes on in the newest version; empty where the API server gives none."""


class UnreadableError(ClusterError):
    """The API server's answer is too large, or is not what it should be."""


_STANDS_STILL = "nothing is made or deleted for this job meanwhile, and pods that run go on"


class UnreadableObjectError(UnreadableError):
    """An object that may be one of a job's cannot be read: what the job has is not known."""

    @classmethod
    def pod(cls, path: str, name: str) -> Self:
        """A pod with the job's label."""
        text = (
            f"cannot read pod {name}, which has the label of this job: it is too large, or is not "
            f"what a pod should be; {_STANDS_STILL} (delete that pod, or remove the label "
            "regroup.dev/job from it)"
        )
        return cls("GET", path, 0, text)

    @classmethod
    def pods(cls, path: str, most: int) -> Self:
        """The pods with the job's label."""
        text = (
            f"cannot keep the pods that have the label of this job: they take more than {most} "
            f"bytes; {_STANDS_STILL} (delete those that are not the job's own)"
        )
        return cls("GET", path, 0, text)

    @classmethod
    def named(cls, kind: str, name: str, why: str) -> Self:
        """An object with the name of one that the job needs; `why` it cannot be read."""
        keeps_data = kind == "PersistentVolumeClaim"
        advice = "do not delete it: the checkpoints would go" if keeps_data else "or delete it"
        text = (
            f"cannot read {kind} {name}, which this job needs: {why}; {_STANDS_STILL} (remove "
            f"large annotations from it; {advice})"
        )
        return cls("GET", name, 0, text)


class ObjectConflictError(OperatorError):
    """An object that is not the job's has the name that one of the job's needs."""


class ChangedPodError(OperatorError):
    """A pod was created otherwise than was asked for."""

    def __init__(self, pod: str, lost: str) -> None:
        super().__init__(
            f"something in the cluster changes pods when they are created (a mutating webhook or "
            f"policy): pod {pod} came without its {lost}, and is deleted again (exempt the job's "
            "pods from it)"
        )


class CoordinatorError(OperatorError):
    """The coordinator does not answer, or its answer is not valid."""


class NoAnswerError(CoordinatorError):
    """Nothing answers: no connection, or no answer in time."""


class CostlyAnswerError(CoordinatorError):
    """Reading an answer takes too much of the operator's one thread."""


class NoWatchError(CoordinatorError):
    """The coordinator is of a release that serves no watch."""
