"""The operator's errors. Their messages name the object, the value and what to do."""

from __future__ import annotations

import os


class OperatorError(Exception):
    """Base of all."""


class SettingsError(OperatorError):
    """The operator's own configuration is wrong."""


class TemplateError(OperatorError):
    """spec.template sets a reserved field, or cannot be merged."""


class ClusterError(OperatorError):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status = status
        self.message = message


class NotFoundError(ClusterError):
    """404: there is no such object."""


class ConflictError(ClusterError):
    """409: the name is taken, or the object changed since it was read."""


class CoordinatorError(OperatorError):
    """The coordinator does not answer, or its answer is not valid."""


def why_no_answer(error: Exception) -> str:
    """What went wrong with a connection, in words: "Connection refused", not the parts of an
    object.
    """
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
