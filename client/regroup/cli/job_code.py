"""A ConfigMap beside a job in one file: the code that the job mounts. Anything else beside a job is
refused by its kind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regroup.cli.manifest import Document
from regroup.cli.validation import Problem, nearest, problem_at
from regroup_operator.api.names import MAIN_CONTAINER, is_object_name
from regroup_operator.api.resource import Object
from regroup_trainer.protocol.message import quote

_FIELDS = {
    (): ["apiVersion", "kind", "metadata", "data", "immutable"],
    ("metadata",): ["name", "namespace", "labels", "annotations"],
}
_FILE = re.compile(r"(?!\.\.?$)(?!\.\.)[-._A-Za-z0-9]{1,253}", re.ASCII)
"""Names that Kubernetes lets a ConfigMap have."""


class JobFile(NamedTuple):
    """What a file holds."""

    jobs: list[Document]
    code: Document | None
    """The ConfigMap that the only job mounts."""


def separate(documents: Sequence[Document]) -> tuple[JobFile, list[Problem]]:
    """The jobs of a file, and their code; what is wrong with the code. What is neither stands among
    the jobs, of which each is checked for itself.
    """
    maps = [document for document in documents if _is_config_map(document.value)]
    jobs = [document for document in documents if not _is_config_map(document.value)]
    problems = [
        problem_at(other, ("kind",), "is a second ConfigMap: a file holds one, with the job's code")
        for other in maps[1:]
    ]
    if not maps:
        return JobFile(jobs, None), problems
    code = maps[0]
    if len(jobs) != 1:
        problem = f"a ConfigMap stands beside one job that mounts it, and here are {len(jobs)}"
        problems.append(problem_at(code, ("kind",), problem))
    return JobFile(jobs, code), [*problems, *_problems_of(code)]


def mismatches(found: JobFile) -> Iterator[Problem]:
    """Why the code is not that of the job, where each of them is valid."""
    if found.code is None:
        return
    code, (job,) = found.code, found.jobs
    shown = [quote(_metadata(one).get("namespace") or "absent") for one in (code, job)]
    if shown[0] != shown[1]:
        problem = f"is {shown[0]}, and that of the job {shown[1]}: write the same"
        yield problem_at(code, ("metadata", "namespace"), problem)
    if not list(_mounts(job.value, _metadata(code)["name"])):
        problem = (
            f"container {MAIN_CONTAINER} of the job mounts no ConfigMap of this name: name it in "
            "spec.template.spec.volumes and in volumeMounts"
        )
        yield problem_at(code, ("metadata", "name"), problem)


def job_in_folder(job: Object, code: Object, folder: Path) -> Object:
    """The job for a local run, with the folder where its command names the place of the ConfigMap.
    Raises ValueError for a mount of only some of the files.
    """
    places = [_place_of(mount) for mount in _mounts(job, code["metadata"]["name"])]

    def here(word: str) -> str:
        for place in places:
            if word == place or word.startswith(f"{place}/"):
                return f"{folder}{word.removeprefix(place)}"
        return word

    spec, template = job["spec"], job["spec"]["template"]
    containers = [
        {
            **one,
            **{part: [here(w) for w in one[part]] for part in ("command", "args") if part in one},
        }
        if one.get("name") == MAIN_CONTAINER
        else one
        for one in template["spec"]["containers"]
    ]
    changed = {**template, "spec": {**template["spec"], "containers": containers}}
    return {**job, "spec": {**spec, "template": changed}}


def write_code(code: Object, directory: Path) -> Path:
    """Write the files below the folder of a run. Returns where they are: other code has another
    place, so that no worker finds a file changed. Raises OSError.
    """
    digest = hashlib.sha256(repr(sorted(code["data"].items())).encode()).hexdigest()[:16]
    folder = directory / "code" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in code["data"].items():
        if not (folder / name).exists():
            whole = folder.with_name(f"{digest}.new")
            whole.write_text(text, encoding="utf-8")
            whole.replace(folder / name)
    return folder


class _Mount(NamedTuple):
    """Where the main container finds the ConfigMap."""

    volume: Mapping[str, Any]
    mount: Mapping[str, Any]


def _place_of(found: _Mount) -> str:
    part = "subPath" in found.mount or "subPathExpr" in found.mount
    if part or found.volume["configMap"].get("items"):
        raise ValueError(
            f"volume {found.volume['name']}: a local run has all files of the ConfigMap in one "
            "folder: leave out items and subPath"
        )
    return str(PurePosixPath(found.mount["mountPath"]))


def _mounts(job: Object, name: str) -> Iterator[_Mount]:
    """Mounts of a ConfigMap in the main container of a valid job."""
    pod = (job["spec"].get("template") or {}).get("spec") or {}
    volumes = {
        volume["name"]: volume
        for volume in pod.get("volumes") or ()
        if (volume.get("configMap") or {}).get("name") == name
    }
    for container in pod.get("containers") or ():
        if container.get("name") == MAIN_CONTAINER:
            for mount in container.get("volumeMounts") or ():
                if mount["name"] in volumes:
                    yield _Mount(volumes[mount["name"]], mount)


def _is_config_map(value: Any) -> bool:
    return isinstance(value, Mapping) and (value.get("kind"), value.get("apiVersion")) == (
        "ConfigMap",
        "v1",
    )


def _problems_of(code: Document) -> list[Problem]:
    """What is wrong with a ConfigMap."""
    problems = []
    for path, known in _FIELDS.items():
        given = code.value if not path else code.value.get(path[0])
        if not isinstance(given, Mapping):
            problems.append(problem_at(code, path, f"must be an object, got {quote(given)}"))
            continue
        problems += [
            problem_at(code, (*path, str(key)), f"unknown field{nearest(str(key), known)}")
            for key in given
            if key not in known
        ]
    name = _metadata(code).get("name")
    if not isinstance(name, str) or not is_object_name(name):
        problems.append(problem_at(code, ("metadata", "name"), f"{quote(name)} is no valid name"))
    return problems + list(_data_problems(code, code.value.get("data")))


def _data_problems(code: Document, data: Any) -> Iterator[Problem]:
    if not isinstance(data, Mapping) or not data:
        yield problem_at(code, ("data",), "must have the files of the code: name, then text")
        return
    for name, text in data.items():
        if not isinstance(name, str) or not _FILE.fullmatch(name):
            yield problem_at(code, ("data",), f"{quote(name)} is no name for a file")
        elif not isinstance(text, str) or any("\ud800" <= sign <= "\udfff" for sign in text):
            yield problem_at(code, ("data", name), f"must be a text, got {quote(text)}")


def _metadata(document: Document) -> Mapping[str, Any]:
    found = document.value.get("metadata")
    return found if isinstance(found, Mapping) else {}
