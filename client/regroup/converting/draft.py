"""The TrainingJob that a conversion makes, and what its reader should check. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regroup_operator.api.resource import API_VERSION, KIND, NAME_LIMIT

DEFAULT_CLAIM = "checkpoints"


@dataclass(frozen=True)
class ConvertOptions:
    """What the source does not say."""

    claim: str | None = None
    """Claim of the volume, for jobs that need one. None: the only one that the pods may write to,
    else DEFAULT_CLAIM.
    """
    image: str | None = None
    """Image of the workers, where the source names none."""
    entrypoint: tuple[str, ...] = ()
    """What the image starts, for sources without a command."""
    name: str | None = None
    """Name of the job, where the source names none."""


@dataclass
class Draft:
    """A TrainingJob that is being made."""

    metadata: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    """Sentences about what was added or decided; each begins with a field of the TrainingJob."""
    code: str | None = None
    """What the job runs, where its source has it in the command."""

    def put(self, path: str, value: Any) -> None:
        """Set a field of spec, such as `restartPolicy.maxRestarts`. None sets nothing."""
        if value is None:
            return
        *parents, last = path.split(".")
        section = self.spec
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value

    def job(self, options: ConvertOptions) -> dict[str, Any]:
        """The TrainingJob, with a claim where it needs one."""
        self._add_storage(options)
        if not self.spec.get("image"):
            self.put("image", options.image)
        known = {name: self.spec[name] for name in _ORDER if name in self.spec}
        spec = {**known, **self.spec}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": self.metadata, "spec": spec}

    def _add_storage(self, options: ConvertOptions) -> None:
        if self.spec.get("elasticPolicy") or self.spec.get("replicas") not in (None, 1):
            claims = _written_claims(self.spec.get("template", {}).get("spec", {}))
            is_mounted = options.claim is None and len(claims) == 1
            claim = claims[0] if is_mounted else options.claim or DEFAULT_CLAIM
            what = "that the pods mount takes the checkpoints" if is_mounted else "is added"
            self.put("checkpoint.storage.persistentVolumeClaim.claimName", claim)
            self.checks.append(
                f"spec.checkpoint.storage: claim {claim} {what}, since workers share a volume: it "
                "has to exist (ReadWriteMany), or give --claim"
            )


def _written_claims(pod: Mapping[str, Any]) -> list[str]:
    """The claims that the containers of a pod may write to, each once."""
    containers: list[Mapping[str, Any]] = pod.get("containers") or []
    mounts = [mount for one in containers for mount in one.get("volumeMounts") or ()]
    written = {mount.get("name") for mount in mounts if not mount.get("readOnly")}
    volumes = [volume for volume in pod.get("volumes") or () if volume["name"] in written]
    sources = [volume.get("persistentVolumeClaim") or {} for volume in volumes]
    names = (source.get("claimName") for source in sources if not source.get("readOnly"))
    return [*dict.fromkeys(filter(None, names))]


_ORDER = (
    "replicas", "nprocPerNode", "image", "resources", "elasticPolicy", "restartPolicy",
    "checkpoint",
)  # fmt: skip
"""The fields that a reader looks for first."""


def job_name(text: str) -> str:
    """A text as the name of a job: what is not possible in a name becomes a dash."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower())[:NAME_LIMIT].strip("-").lstrip("-0123456789")
    return plain or "job"
