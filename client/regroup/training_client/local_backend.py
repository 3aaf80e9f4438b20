"""Jobs as processes of this machine, each with a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regroup.local.run_lock import is_held
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.installed_packages import require_installed
from regroup.training_client.job import Job
from regroup.training_client.job_document import Packages
from regroup.training_client.local_job import LocalJob
from regroup.training_client.sent_code import SentCode
from regroup_operator.api.names import MAIN_CONTAINER
from regroup_operator.api.resource import Object
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.template_merge import strategic_merge
from regroup_trainer.protocol.extras import OF_TRAINER, missing_extra

CODE = "code"
"""Folder of what was sent, below that of a job."""
_CLAIM = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "local"}}}}
"""What a spec needs for several workers. A folder stands for the volume here."""


@dataclass
class LocalBackend:
    """Keeps the jobs of this process."""

    directory: Path
    """Their folders are below it."""
    _jobs: dict[str, LocalJob] = field(default_factory=dict)

    is_cluster = False

    def complete(self, document: Object) -> Object:
        """The job with what a local run does not need, but a spec has to say."""
        spec = document["spec"]
        if (spec.get("checkpoint") or {}).get("storage"):
            return document
        return {**document, "spec": strategic_merge(spec, _CLAIM)}

    def add_code(self, document: Object, code: SentCode, packages: Packages | None) -> Object:
        """The job with the command that starts the code, which `submit` writes."""
        require_installed(packages.names if packages else ())
        folder = self._folder(str(document["metadata"]["name"])) / CODE
        main = {"name": MAIN_CONTAINER, "command": code.command(str(folder))}
        template = {"template": {"spec": {"containers": [main]}}}
        return {**document, "spec": strategic_merge(document["spec"], template)}

    def submit(self, document: Object, code: SentCode | None) -> Job:
        """Start the processes. Raises TrainingClientError."""
        if (missing := missing_extra("trainer", OF_TRAINER)) is not None:
            raise TrainingClientError(f"backend local: {missing}")
        spec = TrainingJobSpec.model_validate(document["spec"])
        if spec.uses_torchrun:
            raise TrainingClientError(
                "launcher: backend local runs launcher regroup: use `regroup run` for torchrun"
            )
        name = str(document["metadata"]["name"])
        if is_held(self._folder(name)):
            raise TrainingClientError(
                f"name: {name}: a run has {self._folder(name)} now: wait for its end, delete that "
                "job, or give another name="
            )
        if code is not None:
            _write(code, self._folder(name) / CODE)
        job = LocalJob(
            name=name,
            spec=spec,
            directory=self._folder(name),
            working_directory=Path.cwd(),
            code=code.explanation if code else "",
        )
        job.start()
        self._jobs[name] = job
        return job

    def job(self, name: str) -> Job:
        """A job that this object has started. Raises TrainingClientError."""
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise TrainingClientError(f"job {name}: not started here, known are: {known}")
        return self._jobs[name]

    def close(self) -> None:
        """Nothing is held open."""

    def _folder(self, name: str) -> Path:
        return (self.directory / name).absolute()


def _write(code: SentCode, folder: Path) -> None:
    try:
        code.write_to(folder)
    except OSError as error:
        raise TrainingClientError(
            f"directory: {folder}: {error.strerror}: give TrainingClient another directory="
        ) from None
