"""What a caller of the Python client says of a job, as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from regroup_operator.api.resource import API_VERSION, KIND, Object
from regroup_operator.api.spec import TrainingJobSpec


@dataclass(frozen=True)
class TrainingJob:
    """A TrainingJob as `kubectl apply` would take it."""

    name: str
    spec: TrainingJobSpec | Mapping[str, Any]
    """The typed spec, or a part of one as YAML has it, where train() is given the code besides."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> Object:
        """The object of the API."""
        spec = (
            self.spec.model_dump(by_alias=True, exclude_unset=True, mode="json")
            if isinstance(self.spec, TrainingJobSpec)
            else dict(self.spec)
        )
        more = {"labels": dict(self.labels), "annotations": dict(self.annotations)}
        metadata = {"name": self.name, **{key: value for key, value in more.items() if value}}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class PackageIndex:
    """Where pip finds packages, instead of PyPI."""

    url: str | None = None
    """Without a password: everybody who may read the job sees it."""
    secret: str | None = None
    """A Secret of the job's namespace. Its key `index-url` has the URL, with user and password."""
    trusted: bool = False
    """Whether pip may use it without TLS, or with a certificate that it cannot check."""

    def __post_init__(self) -> None:
        if (self.url is None) == (self.secret is None):
            raise ValueError("PackageIndex: give url, or secret for a URL with a password")


class TrainOptions(TypedDict, total=False):
    """What train() takes beside the code. What is left out is as TrainingJobSpec has it."""

    func_args: Mapping[str, object]
    """Keyword arguments of the function."""
    script_args: Sequence[str]
    """Words behind the script."""
    name: str
    """Of the job. Default: the function's or script's, with some random characters behind it."""
    workers: int | tuple[int, int]
    """A fixed number, or the fewest and the most; the most are asked for."""
    gpus: int
    """Of each worker."""
    image: str
    """Of the workers: Regroup's own, or any with torch."""
    python: str
    """Minor version of the image's Python, such as 3.12, where its tag does not say it."""
    claim: str
    """PersistentVolumeClaim that all workers share, for checkpoints."""
    packages: Sequence[str]
    """What to install before a worker starts, as pip has it: `einops`, `tqdm>=4`."""
    package_index: PackageIndex
    """Default: PyPI, or what the image's pip is configured for."""
