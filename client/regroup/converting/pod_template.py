"""The pods of a job as the template of a TrainingJob's workers. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regroup.converting.draft import Draft
from regroup.converting.inline_code import mount_code
from regroup.converting.source import Place, Refusal, Row, Source, is_leaf, parts, shown, value_at
from regroup_operator.api.names import MAIN_CONTAINER
from regroup_operator.api.pod_types import find_mismatch
from regroup_operator.api.template_merge import MERGE_KEYS, strategic_merge

_OPERATOR = "the operator sets it"
_RANKS = "the job sets it for each rank"
_MEETING = "the job brings its own rendezvous"
_CODE = (
    "spec.template.spec.volumes: the code of the command is in a ConfigMap in front of the job: "
    "create both (kubectl trainingjob submit -f, or kubectl apply -f)"
)
_MEETING_PORT = "pytorchjob-port"
_TRAINER = f"spec.template.spec.containers[{MAIN_CONTAINER}]"
_RANK_VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
ROWS = (
    Row("metadata.labels", "spec.template.metadata.labels"),
    Row("metadata.annotations", "spec.template.metadata.annotations"),
    Row("metadata", "", _OPERATOR),
    Row("spec.restartPolicy", "", "the operator replaces workers"),
    Row("spec.nodeName", "", _OPERATOR),
    Row("spec.hostname", "", _OPERATOR),
    Row("spec.subdomain", "", _OPERATOR),
    Row("spec.automountServiceAccountToken", "", _OPERATOR),
    Row("spec.containers.name", f"{_TRAINER}.name", "of the main one"),
    Row("spec.containers.image", "spec.image", "of the main one"),
    Row("spec.containers.resources", "spec.resources", "of the main one"),
    Row("spec.containers.command", f"{_TRAINER}.command", "with args, less a launcher"),
    Row("spec.containers.args", f"{_TRAINER}.command", "behind command"),
    Row("spec.containers.terminationMessagePath", "", _OPERATOR),
    Row("spec.containers.ports", f"{_TRAINER}.ports", "less that of the rendezvous"),
    Row("spec.containers.env", f"{_TRAINER}.env", "less RANK, MASTER_ADDR, PET_* and the like"),
    Row("spec.*", "spec.template.spec", "as it is"),
)
"""The fields of a pod template."""


def is_of_ranks(variable: object) -> bool:
    """Whether a variable is one that the job sets for each rank."""
    return isinstance(variable, str) and (
        variable in _RANK_VARIABLES or variable.startswith("PET_")
    )


@dataclass
class Pod:
    """A pod template whose main container is known."""

    template: dict[str, Any]
    """Without what has a field of its own in a TrainingJob."""
    image: str | None
    resources: dict[str, Any]
    command: list[str]
    args: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    """To be added to those of the main container."""
    working_directory: str | None = None
    """Instead of that of the main container."""
    code: str | None = None
    """What the command starts, where it was in the command itself."""

    @property
    def limits(self) -> Mapping[str, Any]:
        """Limits of the main container."""
        return self.resources.get("limits") or {}

    @property
    def main(self) -> dict[str, Any]:
        """The container of `template` that runs the command. Its name is MAIN_CONTAINER, whatever
        the job calls it.
        """
        containers: list[dict[str, Any]] = self.template["spec"]["containers"]
        return next(one for one in containers if one["name"] == MAIN_CONTAINER)

    def replaced(self) -> Iterator[str]:
        """Fields of the main container that give way to what its command sets."""
        given = self.main.get("workingDir")
        if self.working_directory and given not in (None, self.working_directory):
            yield f"workingDir {given}"
        for entry in self.main.get("env") or ():
            if entry["name"] in self.variables:
                yield f"env {entry['name']}={entry.get('value', '')}"

    def put(self, draft: Draft, command: Sequence[str]) -> None:
        """Write the pods of a job that runs `command`."""
        draft.put("image", self.image)
        draft.put("resources", self.resources or None)
        main = self.main
        main["command"] = list(command)
        if self.working_directory:
            main["workingDir"] = self.working_directory
        if self.variables:
            others = [one for one in main.get("env") or () if one["name"] not in self.variables]
            added = [{"name": name, "value": value} for name, value in self.variables.items()]
            main["env"] = [*others, *added]
        if self.code is not None:
            mount_code(self.template["spec"], main, draft.metadata["name"])
            draft.code = self.code
            draft.checks.append(_CODE)
        draft.put("template", self.template)


def bare_pod() -> Pod:
    """The pod of a source that says nothing of pods."""
    return Pod({"spec": {"containers": [{"name": MAIN_CONTAINER}]}}, None, {}, [], [])


def take_layer(source: Source, place: Place, main: Callable[[Any], bool]) -> dict[str, Any]:
    """The pod template at a place as it can be taken. What cannot is reported. `main`: whether the
    name of a container is that of the main one. Raises Refusal.
    """
    given = copy.deepcopy(dict(source.mapping(*place)))
    source.take(*place)
    left = dict(_reserved(given, place, main))
    for where, why in left.items():
        source.leave(where, why)
    taken: dict[str, Any] = _without(given, place, left.keys())
    _require_pod(source, place, taken)
    return taken


def _require_pod(source: Source, place: Place, taken: Mapping[str, Any]) -> None:
    """Raises Refusal for what Kubernetes would not accept as a pod template."""
    if problem := find_mismatch(taken, "PodTemplateSpec", shown(place), whole=False):
        field, _, message = problem.partition(": ")
        raise Refusal((field,), message, source.document)
    for where, entry in _merged_entries(taken, place):
        key = MERGE_KEYS[where[-2]]
        if not isinstance(entry, Mapping) or entry.get(key) is None:
            raise source.refuse(where, f"{key} is missing: each entry needs it")


def _merged_entries(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    for step, inner in parts(value):
        if not is_leaf(inner):
            yield from _merged_entries(inner, (*place, step))
        if isinstance(value, list) and place and place[-1] in MERGE_KEYS:
            yield (*place, step), inner


def _reserved(
    pod: Mapping[Any, Any], place: Place, main: Callable[[Any], bool]
) -> Iterator[tuple[Place, str]]:
    """Places that a TrainingJob has no room for, and why."""
    for key in pod:
        if key not in ("metadata", "spec"):
            yield (*place, key), "a pod template has metadata and spec"
    for key in _object(pod, "metadata"):
        if key not in ("labels", "annotations"):
            yield (*place, "metadata", key), _OPERATOR
    spec = _object(pod, "spec")
    for row in ROWS:
        *section, field = row.field.split(".")
        if not row.target and section == ["spec"] and field in spec:
            yield (*place, "spec", field), row.text
    for kind in ("containers", "initContainers"):
        for number, container in _objects(spec, kind):
            where = (*place, "spec", kind, number)
            if "terminationMessagePath" in container:
                yield (*where, "terminationMessagePath"), _OPERATOR
            if kind == "containers" and main(container.get("name")):
                yield from _of_rendezvous(container, where)


def _of_rendezvous(container: Mapping[Any, Any], where: Place) -> Iterator[tuple[Place, str]]:
    for number, variable in _objects(container, "env"):
        if is_of_ranks(variable.get("name")):
            yield (*where, "env", number), _RANKS
    for number, port in _objects(container, "ports"):
        if port.get("name") == _MEETING_PORT:
            yield (*where, "ports", number), _MEETING


def _object(owner: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    """A field that is an object; empty where it is none."""
    value = owner.get(key)
    return value if isinstance(value, Mapping) else {}


def _objects(owner: Mapping[Any, Any], key: str) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    """The objects in a field that is a list, with their place."""
    value = owner.get(key)
    for number, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, Mapping):
            yield number, entry


def _without(value: Any, place: Place, left: Collection[Place]) -> Any:
    """A value without what lies at the places `left`, and without null, which a template must not
    have in some places and which says nothing.
    """
    if isinstance(value, dict):
        return {
            key: _without(inner, (*place, key), left)
            for key, inner in value.items()
            if inner is not None and (*place, key) not in left
        }
    if isinstance(value, list):
        return [
            _without(inner, (*place, number), left)
            for number, inner in enumerate(value)
            if (*place, number) not in left
        ]
    return value


def read_pod(source: Source, place: Place, taken: dict[str, Any], main: str) -> Pod:
    """The pod of a template that was taken from a place, with its main container by our name.
    Raises Refusal.
    """
    spec = taken.setdefault("spec", {})
    containers = spec.get("containers") or []
    found = [c for c in containers if c.get("name") == main] or containers
    where = (*place, "spec", "containers")
    if len(found) != 1:
        raise source.refuse(where, f"{len(found)} are there, and none is named {main}: name one so")
    container = found[0]
    resources = container.pop("resources", None) or {}
    own = {part: resources.pop(part) for part in ("limits", "requests") if part in resources}
    if resources:
        container["resources"] = resources
    container["name"] = MAIN_CONTAINER
    command, args = container.pop("command", None) or [], container.pop("args", None) or []
    return Pod(taken, container.pop("image", None), own, command, args)


def merge_layer(
    base: Mapping[str, Any], patch: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Place]]:
    """A layer over another as Kubernetes merges them, and the places of the lower one that the
    upper one replaces. An entry of a list with names is a name there.
    """
    return strategic_merge(base, patch), list(_replaced(base, patch, ()))


def _replaced(base: Mapping[str, Any], patch: Mapping[str, Any], place: Place) -> Iterator[Place]:
    for key, value in patch.items():
        old, where = base.get(key), (*place, key)
        if old is None or old == value:
            continue
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from _replaced(old, value, where)
        elif key in MERGE_KEYS and isinstance(value, list) and isinstance(old, list):
            by_name = _by_key(old, MERGE_KEYS[key])
            for name, entry in _by_key(value, MERGE_KEYS[key]).items():
                yield from _replaced(by_name.get(name, {}), entry, (*where, name))
        else:
            yield where


def _by_key(entries: list[Any], key: str) -> dict[Any, Mapping[str, Any]]:
    return {
        entry[key]: entry
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get(key), str | int)
    }


def locate(value: Any, names: Place) -> Place | None:
    """The place that `merge_layer` named, with indexes of lists instead of names; None where this
    layer has nothing there.
    """
    found: list[Any] = []
    list_of = ""
    for name in names:
        step = name
        if isinstance(value, list):
            key = MERGE_KEYS[list_of]
            step = next((n for n, entry in enumerate(value) if entry.get(key) == name), None)
        else:
            list_of = name
        value = value_at(value, (step,))
        if value is None:
            return None
        found.append(step)
    return tuple(found)
