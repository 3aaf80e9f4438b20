"""`TrainingClient`: where training from Python begins."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, Unpack

from regroup.cli.manifest import Document
from regroup.cli.validation import validate
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.image_python import python_of
from regroup.training_client.job import Job
from regroup.training_client.job_document import Packages, base_document
from regroup.training_client.kubernetes_backend import KubernetesBackend
from regroup.training_client.sent_code import SentCode, code_of_function, code_of_script
from regroup.training_client.training_job import TrainingJob, TrainOptions
from regroup_operator.api.resource import Object

RUNS_FOLDER = Path("regroup-runs")
"""Where backend `local` has the folders of its jobs."""
_NAME_LENGTH = 40
log = logging.getLogger("regroup")


class Backend(Protocol):
    """Where jobs run."""

    is_cluster: bool

    def complete(self, document: Object) -> Object:
        """The job with what this place fills in."""

    def add_code(self, document: Object, code: SentCode, packages: Packages | None) -> Object:
        """The job with what makes its pods run `code`, after they have installed `packages`."""

    def submit(self, document: Object, code: SentCode | None) -> Job:
        """Have it run."""

    def job(self, name: str) -> Job:
        """One that was submitted before."""

    def close(self) -> None:
        """Give back what is held open."""


class TrainingClient:
    """Submits jobs to a cluster or runs them on this machine. Also a context manager.

    namespace, context, kubeconfig: as the flags of kubectl; directory: where backend `local` has
    the folders of its jobs.
    """

    def __init__(
        self,
        backend: Literal["kubernetes", "local"] = "kubernetes",
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        directory: str | Path = RUNS_FOLDER,
    ) -> None:
        if backend not in ("kubernetes", "local"):
            raise ValueError(f"backend: {backend!r}: give 'kubernetes' or 'local'")
        self._backend: Backend
        if backend == "kubernetes":
            config = str(kubeconfig) if kubeconfig is not None else None
            self._backend = KubernetesBackend(namespace, context, config)
        else:
            from regroup.training_client.local_backend import LocalBackend

            self._backend = LocalBackend(Path(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def train(
        self,
        func: Callable[..., object] | None = None,
        *,
        script: str | Path | None = None,
        job: TrainingJob | None = None,
        **options: Unpack[TrainOptions],
    ) -> Job:
        """Submit a function, a script or a TrainingJob, which each rank runs. A job may be given
        besides a function or script: for all that the options do not say.

        Raises TrainingClientError for what is wrong here, ClusterError for what a cluster refuses.
        """
        if func is not None and script is not None:
            raise TrainingClientError("func and script: give one of them")
        if func is None and script is None and job is None:
            raise TrainingClientError("func: is missing: give a function, script= or job=")
        _require_fitting(options, func, script)
        name = options.get("name") or (job.name if job else _new_name(func, script))
        document = self._backend.complete(base_document(name, job, options))
        image = document["spec"].get("image") if self._backend.is_cluster else None
        code = _code(func, script, image, options)
        if code is not None:
            document = self._backend.add_code(document, code, _packages(options))
            log.info("%s", code.explanation)
        _require_valid(document, on_cluster=self._backend.is_cluster)
        return self._backend.submit(document, code)

    def job(self, name: str) -> Job:
        """A job that was submitted before. Raises TrainingClientError or ClusterError."""
        return self._backend.job(name)

    def close(self) -> None:
        """Close connections. Jobs go on; those of backend `local` as long as this process."""
        self._backend.close()


def _require_fitting(
    options: TrainOptions, func: Callable[..., object] | None, script: str | Path | None
) -> None:
    """Raises TypeError for unknown options, TrainingClientError for those without their code."""
    unknown = sorted(set(options) - set(TrainOptions.__annotations__))
    if unknown:
        known = ", ".join(sorted(TrainOptions.__annotations__))
        raise TypeError(f"train() has no argument {', '.join(unknown)}: known are {known}")
    needs = {"func_args": func, "script_args": script, "packages": func or script}
    if lone := [name for name, code in needs.items() if options.get(name) and code is None]:
        raise TrainingClientError(f"{lone[0]}: there is no func or script that it belongs to")


def _new_name(func: Callable[..., object] | None, script: str | Path | None) -> str:
    """A name that no other job has, as far as chance allows."""
    source = Path(script).stem if script is not None else getattr(func, "__name__", "job")
    plain = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-0123456789")[:_NAME_LENGTH]
    return f"{plain.strip('-') or 'job'}-{secrets.token_hex(3)}"


def _code(
    func: Callable[..., object] | None,
    script: str | Path | None,
    image: str | None,
    options: TrainOptions,
) -> SentCode | None:
    if script is not None:
        return code_of_script(Path(script), options.get("script_args", ()))
    if func is None:
        return None
    try:
        python = python_of(image, options.get("python"))
    except ValueError as error:
        raise TrainingClientError(str(error)) from None
    return code_of_function(func, options.get("func_args", {}), image, python)


def _packages(options: TrainOptions) -> Packages | None:
    names = tuple(options.get("packages", ()))
    return Packages(names, options.get("package_index")) if names else None


def _require_valid(document: Object, *, on_cluster: bool) -> None:
    """Raises TrainingClientError with all that is wrong with a job."""
    problems = validate(Document(Path("train"), document), on_cluster)
    if problems:
        reasons = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
        advice = " (claim= names one)" if "checkpoint.storage" in reasons else ""
        raise TrainingClientError(f"the arguments describe no valid job: {reasons}{advice}")
