"""Metadata of an object of Kubernetes, as that of a TrainingJob. Pure."""

from __future__ import annotations

from regroup.converting.draft import ConvertOptions, Draft, job_name
from regroup.converting.source import Row, Source
from regroup_trainer.protocol.message import quote

_SERVER = "the API server sets it"
_KUEUE = "queueing by Kueue is not supported yet"
_QUEUE = "kueue.x-k8s.io/queue-name"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
ROWS = (
    Row("apiVersion", "apiVersion"),
    Row("kind", "kind"),
    Row("metadata.name", "metadata.name"),
    Row("metadata.generateName", "metadata.name", "without the dash at its end"),
    Row("metadata.namespace", "metadata.namespace"),
    Row("metadata.labels", "metadata.labels", "without those of Kueue"),
    Row("metadata.annotations", "metadata.annotations", "without those of kubectl"),
    Row("metadata.*", "", _SERVER),
    Row("status", "", "it is about the other job"),
)


def take_metadata(source: Source, draft: Draft, options: ConvertOptions) -> None:
    """Name, namespace, labels and annotations. Raises Refusal."""
    source.take("apiVersion")
    source.take("kind")
    source.mapping("metadata")
    given = source.text("metadata", "generateName")
    made = job_name(given) if given else None
    name = source.text("metadata", "name") or made or options.name
    if not name:
        raise source.refuse(("metadata", "name"), "is missing: give the job a name")
    draft.metadata["name"] = name
    if name == made:
        draft.checks.append(f"metadata.name: {name} is made of generateName: a job needs its own")
    if namespace := source.text("metadata", "namespace"):
        draft.metadata["namespace"] = namespace
    for part in ("labels", "annotations"):
        if texts := _texts(source, part):
            draft.metadata[part] = texts


def _texts(source: Source, part: str) -> dict[str, str]:
    reasons, kept = {_QUEUE: _KUEUE, _APPLIED: "kubectl's own copy of the file"}, {}
    for key, value in source.mapping("metadata", part).items():
        place = ("metadata", part, key)
        if key in reasons:
            source.leave(place, reasons[key])
        elif not isinstance(key, str) or not isinstance(value, str):
            raise source.refuse(place, f"key and value must be texts, got {quote(value)}")
        else:
            kept[key] = source.take(*place)
    return kept
