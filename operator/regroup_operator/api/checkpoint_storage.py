"""Where a TrainingJob keeps its checkpoints, how often it saves, and where it resumes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regroup_operator.api.resource import Label, ObjectName, Quantity
from regroup_trainer.protocol.config import (
    CheckpointPolicy,
    ResumePolicy,
    Section,
)


class ClaimStorage(Section):
    """An existing PersistentVolumeClaim."""

    claim_name: ObjectName
    """Name of a claim in the job's namespace; ReadWriteMany for more than one worker."""
    sub_path: Annotated[str, Field(max_length=512, pattern=r"^[^/].*$")] | None = None
    """Folder of the volume. The job's pods mount only this, and the job's own folder is made in it.
    """

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        if self.sub_path and ".." in self.sub_path.split("/"):
            raise ValueError(f"subPath {self.sub_path!r} must not contain '..'")
        return self


class ClaimMetadata(Section):
    """Labels and annotations of a claim that the operator makes."""

    labels: (
        Annotated[dict[Label, Annotated[str, Field(max_length=63)]], Field(max_length=32)] | None
    ) = None
    """Labels of the claim."""
    annotations: (
        Annotated[dict[Label, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None
    ) = None
    """Annotations of the claim, for a backup tool for instance."""


class ClaimResources(Section):
    """Size of a claim."""

    requests: Annotated[dict[Label, Quantity], Field(max_length=4)]
    """`storage` is needed."""


class ClaimSpec(Section):
    """What kind of volume."""

    access_modes: Annotated[
        tuple[Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"], ...],
        Field(max_length=3),
    ] = ("ReadWriteMany",)
    """ReadWriteMany for more than one worker. Default [ReadWriteMany]."""
    resources: ClaimResources
    """The requested size, in `requests.storage`."""
    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """StorageClass; absent: the cluster's default."""


class ClaimTemplate(Section):
    """A claim that is made with the job, named `<job>-checkpoints`."""

    metadata: ClaimMetadata = ClaimMetadata()
    """Labels and annotations."""
    spec: ClaimSpec
    """Size, access modes and storage class of the volume."""


class EmptyDirStorage(Section):
    """A folder that is deleted with its pod: for a single worker whose checkpoints need not outlive
    it.
    """

    size_limit: Quantity | None = None
    """Most bytes that it may hold."""


class CheckpointStorage(Section):
    """Where checkpoints are; exactly one kind. The job's own folder is
    `[subPath/]<namespace>/<job>-<8 of UID>`.
    """

    persistent_volume_claim: ClaimStorage | None = None
    """An existing claim."""
    volume_claim_template: ClaimTemplate | None = None
    """A claim of the job's own."""
    empty_dir: EmptyDirStorage | None = None
    """A folder of the pod."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        kinds = {
            "persistentVolumeClaim": self.persistent_volume_claim,
            "volumeClaimTemplate": self.volume_claim_template,
            "emptyDir": self.empty_dir,
        }
        given = [name for name, kind in kinds.items() if kind is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of {', '.join(kinds)}, got {got}")
        return self


class Checkpoint(CheckpointPolicy):
    """When, where and how long checkpoints are kept."""

    storage: CheckpointStorage | None = None
    """Where; needed when the job is elastic or has more than one worker."""
    termination_grace_seconds: Annotated[int, Field(ge=0, le=86400)] = 120
    """Time that a worker has to save and end once its pod is deleted. Default 120."""
    retention_policy: Literal["Retain", "Delete"] = "Retain"
    """Whether the claim of `volumeClaimTemplate` outlives the job. Default Retain."""

    @property
    def policy(self) -> CheckpointPolicy:
        """As coordinator and ranks know it."""
        return CheckpointPolicy.model_validate(
            {name: getattr(self, name) for name in CheckpointPolicy.model_fields}
        )


class Resume(ResumePolicy):
    """What the job starts from."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.policy == "Step") != (self.step is not None):
            raise ValueError("policy Step and the field step belong together: give both or neither")
        if (self.policy == "Job") != (self.job_name is not None):
            raise ValueError(
                "policy Job and the field jobName belong together: give both or neither"
            )
        return self

    @property
    def plain(self) -> ResumePolicy:
        """As coordinator and ranks know it."""
        return ResumePolicy(policy=self.policy, step=self.step, job_name=self.job_name)
