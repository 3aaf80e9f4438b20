"""Turns documents of Kubernetes, scripts and command lines into TrainingJobs. Pure.

Each document becomes a job, or is refused with a reason, or is named as what it is: the parts of a
job that are no job. Runtimes of a TrainJob and scripts of a RayJob may be in other documents.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regroup.converting import batch_script, pytorch_job, ray_job, train_job
from regroup.converting.draft import ConvertOptions, Draft
from regroup.converting.inline_code import code_map
from regroup.converting.source import Note, Place, Refusal, Source
from regroup_trainer.protocol.message import shorten

_UNNAMED = "is left out: no TrainJob in the files names it"
_NO_JOB = "is no job that can be converted: it stays as it is"
KNOWN = "PyTorchJob (kubeflow.org/v1), TrainJob (trainer.kubeflow.org) and RayJob (ray.io)"
_GROUPS = {
    pytorch_job.KIND: "kubeflow.org/v1",
    train_job.KIND: "trainer.kubeflow.org/",
    ray_job.KIND: "ray.io/",
    **dict.fromkeys(train_job.RUNTIMES, "trainer.kubeflow.org/"),
}
"""Kind -> how apiVersion begins."""


@dataclass(frozen=True)
class Conversion:
    """What became of a document."""

    title: str
    """Kind and name."""
    document: int
    """Its number."""
    job: Mapping[str, Any] | None = None
    """The TrainingJob."""
    config_map: Mapping[str, Any] | None = None
    """The ConfigMap that the job mounts, where its source has code in the command."""
    left_out: tuple[Note, ...] = ()
    checks: tuple[str, ...] = ()
    """What was added or has to be looked at; each begins with a field of the TrainingJob."""
    refusal: Note | None = None
    """Why there is no job."""


def convert_documents(documents: Sequence[Any], options: ConvertOptions) -> list[Conversion]:
    """Convert what was read from YAML, in its order."""
    entries = [
        _Entry(number, root, value)
        for number, document in enumerate(documents)
        for root, value in _entries(document, ())
    ]
    beside = _Beside(
        runtimes=[entry for entry in entries if entry.kind in train_job.RUNTIMES],
        scripts={name: text for entry in entries for name, text in entry.files.items()},
    )
    named = {train_job.runtime_of(e.value) for e in entries if e.kind == train_job.KIND}
    return [_convert_entry(e, beside, options) for e in entries if e.runtime_name not in named]


def convert_script(text: str, options: ConvertOptions) -> Conversion:
    """Convert a script for sbatch."""
    return _convert_text(batch_script.Text(text, "script"), options)


def convert_command(words: Sequence[str], options: ConvertOptions) -> Conversion:
    """Convert a command line, such as that of torchrun."""
    return _convert_text(batch_script.Text(shlex.join(words), "command line"), options)


def _convert_text(text: batch_script.Text, options: ConvertOptions) -> Conversion:
    try:
        draft, notes = batch_script.convert(text, options)
    except Refusal as refusal:
        return Conversion(text.kind, 0, refusal=_note_of(refusal))
    return _of_draft(text.kind, 0, draft, notes, options)


class _Entry:
    """One object: a document, or an entry of a list."""

    def __init__(self, document: int, root: Place, value: Any) -> None:
        self.document, self.root = document, root
        self.value: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
        self.kind = self._kind()

    def _kind(self) -> str:
        """Its kind where it is one of those that are read; otherwise empty."""
        kind, version = self.value.get("kind"), self.value.get("apiVersion")
        group = _GROUPS.get(kind) if isinstance(kind, str) else None
        fits = group is not None and isinstance(version, str) and version.startswith(group)
        return str(kind) if fits else ""

    @property
    def metadata(self) -> Mapping[Any, Any]:
        """Empty where it is no object."""
        found = self.value.get("metadata")
        return found if isinstance(found, Mapping) else {}

    @property
    def title(self) -> str:
        """Kind and name."""
        kind = self.value.get("kind")
        shown = [shorten(kind) if isinstance(kind, str) else "document without a kind"]
        name = self.metadata.get("name") or self.metadata.get("generateName")
        return " ".join([*shown, *([shorten(name)] if isinstance(name, str) else [])])

    @property
    def runtime_name(self) -> tuple[str, Any] | None:
        """What a TrainJob calls it; None where it is no runtime."""
        is_runtime = self.kind in train_job.RUNTIMES
        return (self.kind, str(self.metadata.get("name"))) if is_runtime else None

    @property
    def files(self) -> dict[str, str]:
        """The texts of a ConfigMap, by their name."""
        data = self.value.get("data") if self.value.get("kind") == "ConfigMap" else None
        found = data.items() if isinstance(data, Mapping) else ()
        return {k: v for k, v in found if isinstance(k, str) and isinstance(v, str)}

    def source(self, value: Mapping[Any, Any] | None = None) -> Source:
        """Its values, of which none is taken yet."""
        return Source(self.value if value is None else value, self.kind, self.document, self.root)


@dataclass(frozen=True)
class _Beside:
    """What else is in the files."""

    runtimes: list[_Entry]
    scripts: Mapping[str, str]


def _entries(document: Any, root: Place) -> Iterator[tuple[Place, Any]]:
    """The objects of a document: kubectl writes several as a list."""
    kind = document.get("kind") if isinstance(document, Mapping) else None
    items = document.get("items") if isinstance(document, Mapping) else None
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield (*root, "items", number), item
    else:
        yield root, document


def _convert_entry(entry: _Entry, beside: _Beside, options: ConvertOptions) -> Conversion:
    title, number, root = entry.title, entry.document, entry.root
    if entry.kind in ("", *train_job.RUNTIMES):
        why = _UNNAMED if entry.kind else _NO_JOB
        return Conversion(title, number, left_out=(Note(root, f"{title} {why}", number),))
    try:
        draft, notes = _draft_of(entry, beside, options)
    except Refusal as refusal:
        return Conversion(title, number, refusal=_note_of(refusal))
    return _of_draft(title, number, draft, notes, options)


def _draft_of(entry: _Entry, beside: _Beside, options: ConvertOptions) -> tuple[Draft, list[Note]]:
    source = entry.source()
    if entry.kind == pytorch_job.KIND:
        draft = pytorch_job.convert(source, options)
        return draft, source.left_out(pytorch_job.ROWS)
    if entry.kind == train_job.KIND:
        runtimes = [runtime.source() for runtime in beside.runtimes]
        draft, runtime = train_job.convert(source, runtimes, options)
        others = runtime.left_out(train_job.RUNTIME_ROWS) if runtime in runtimes else []
        return draft, [*source.left_out(train_job.ROWS), *others]
    try:
        source = entry.source(ray_job.with_runtime_environment(entry.value))
    except ValueError as error:
        raise source.refuse(("spec", "runtimeEnvYAML"), str(error)) from None
    draft = ray_job.convert(source, beside.scripts, options)
    return draft, source.left_out(ray_job.ROWS)


def _of_draft(
    title: str, number: int, draft: Draft, notes: Sequence[Note], options: ConvertOptions
) -> Conversion:
    job = draft.job(options)
    beside = None if draft.code is None else code_map(job["metadata"], draft.code)
    return Conversion(title, number, job, beside, tuple(notes), tuple(draft.checks))


def _note_of(refusal: Refusal) -> Note:
    return Note(refusal.place, refusal.problem, refusal.document)
