"""Command lines and Python client. Importing it loads neither torch nor what it re-exports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regroup.kubernetes.cluster_errors import ClusterError as ClusterError
    from regroup.training_client.async_client import AsyncJob as AsyncJob
    from regroup.training_client.async_client import AsyncTrainingClient as AsyncTrainingClient
    from regroup.training_client.client_errors import CodeError as CodeError
    from regroup.training_client.client_errors import JobFailedError as JobFailedError
    from regroup.training_client.client_errors import TrainingClientError as TrainingClientError
    from regroup.training_client.job import Job as Job
    from regroup.training_client.metric_frame import to_frame as to_frame
    from regroup.training_client.training_client import TrainingClient as TrainingClient
    from regroup.training_client.training_job import PackageIndex as PackageIndex
    from regroup.training_client.training_job import TrainingJob as TrainingJob
    from regroup_operator.api.spec import TrainingJobSpec as TrainingJobSpec

_ROOM = "regroup.training_client"
_EXPORTED = {
    "AsyncJob": f"{_ROOM}.async_client",
    "AsyncTrainingClient": f"{_ROOM}.async_client",
    "ClusterError": "regroup.kubernetes.cluster_errors",
    "CodeError": f"{_ROOM}.client_errors",
    "Job": f"{_ROOM}.job",
    "JobFailedError": f"{_ROOM}.client_errors",
    "PackageIndex": f"{_ROOM}.training_job",
    "TrainingClient": f"{_ROOM}.training_client",
    "TrainingClientError": f"{_ROOM}.client_errors",
    "TrainingJob": f"{_ROOM}.training_job",
    "TrainingJobSpec": "regroup_operator.api.spec",
    "to_frame": f"{_ROOM}.metric_frame",
}


def __getattr__(name: str) -> object:
    """Import what is asked for. Raises AttributeError."""
    if name not in _EXPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTED})
