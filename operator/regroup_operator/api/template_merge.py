"""Kubernetes' strategic merge of a partial pod template over the operator's, and the fields that a
template must not set.

Objects are merged deeply. A list is merged by the key that the OpenAPI document names for it
(`x-kubernetes-patch-merge-key`); other lists are replaced. Null removes a field. Directives such as
`$patch` are refused: a template describes a result, not an edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regroup_operator.api import names
from regroup_operator.errors import TemplateError
from regroup_trainer.protocol.addresses import TOKEN_FILE
from regroup_trainer.protocol.environment import ENVIRONMENT_PREFIX

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Field of a pod -> the key by which its entries are merged."""


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `patch` over `base`; neither is changed."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(key, base.get(key), value)
    return merged


def _merge_value(key: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, Mapping):
        return strategic_merge(base if isinstance(base, Mapping) else {}, patch)
    if (
        isinstance(patch, list)
        and key in MERGE_KEYS
        and isinstance(base, list)
        and _has_keys(patch, MERGE_KEYS[key])
    ):
        return _merge_list(base, patch, MERGE_KEYS[key])
    return patch


def _has_keys(entries: list[Any], key: str) -> bool:
    return all(isinstance(entry, Mapping) and key in entry for entry in entries)


def _merge_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Merge entries of the same key; then order them by the base as far as it decides.

    The order matters: a variable may refer to an earlier one. This is `mergeSortedSlice` of
    apimachinery's strategicpatch: an entry of the base alone precedes the first entry of the patch
    that stands further back in the base.
    """
    place = {entry[key]: position for position, entry in enumerate(base)}
    theirs = [strategic_merge(base[place[e[key]]] if e[key] in place else {}, e) for e in patch]
    named = {entry[key] for entry in patch}
    ours = [entry for entry in base if entry[key] not in named]
    merged = []
    while ours and theirs:
        ours_first = place[ours[0][key]] < place.get(theirs[0][key], -1)
        merged.append((ours if ours_first else theirs).pop(0))
    return [*merged, *ours, *theirs]


# --- what is reserved -----------------------------------------------------------------------------


def check_template(template: Mapping[str, Any]) -> None:
    """Raises TemplateError, which names the field, when the template sets what the operator relies
    on.
    """
    _refuse_directives(template, "spec.template")
    for part in template:
        if part not in ("metadata", "spec"):
            raise TemplateError(
                f"spec.template.{part}: unknown field: a pod template has metadata and spec"
            )
        if not isinstance(template[part] or {}, Mapping):
            raise TemplateError(f"spec.template.{part}: must be an object, got {template[part]!r}")
    _check_metadata(template.get("metadata") or {})
    _check_spec(template.get("spec") or {})


def _refuse_directives(node: Any, path: str) -> None:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key.startswith("$"):
                raise TemplateError(
                    f"{path}.{key}: patch directives are not possible here: leave it out"
                )
            _refuse_directives(value, f"{path}.{key}")
    elif isinstance(node, list):
        for position, entry in enumerate(node):
            _refuse_directives(entry, f"{path}[{position}]")


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    for field in metadata:
        if field not in ("labels", "annotations"):
            raise TemplateError(
                f"spec.template.metadata.{field}: reserved for the operator: give only labels and "
                "annotations"
            )
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            if key.startswith(f"{names.DOMAIN}/"):
                raise TemplateError(
                    f"spec.template.metadata.{field}[{key}]: reserved for the operator"
                )


_RESERVED_IN_SPEC = (
    "restartPolicy",
    "nodeName",
    "hostname",
    "subdomain",
    "automountServiceAccountToken",
)
_RESERVED_IN_MAIN = ("terminationMessagePath",)
_RESERVED_VOLUMES = ("token", "checkpoints", names.INJECTOR)
_RESERVED_MOUNTS = (TOKEN_FILE.rsplit("/", 1)[0], names.AGENT_FOLDER)


def _check_spec(spec: Mapping[str, Any]) -> None:
    for field in _RESERVED_IN_SPEC:
        if field in spec:
            raise TemplateError(
                f"spec.template.spec.{field}: reserved for the operator: leave it out"
            )
    for volume in _entries(spec, "volumes"):
        if volume.get("name") in _RESERVED_VOLUMES:
            raise TemplateError(
                f"spec.template.spec.volumes[{volume['name']}]: reserved for the operator"
            )
    for kind in ("containers", "initContainers"):
        for container in _entries(spec, kind):
            _check_container(container, f"spec.template.spec.{kind}[{container.get('name')}]")


def _entries(owner: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    entries = owner.get(field) or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TemplateError(f"spec.template: {field} must be a list of objects")
    return entries


def _check_container(container: Mapping[str, Any], path: str) -> None:
    if "name" not in container:
        raise TemplateError(
            f"{path}: a container needs a name; the main one is {names.MAIN_CONTAINER!r}"
        )
    if container["name"] == names.INJECTOR:
        raise TemplateError(f"{path}: this name is reserved for the operator")
    for field in _RESERVED_IN_MAIN:
        if field in container:
            raise TemplateError(f"{path}.{field}: reserved for the operator")
    for variable in _entries(container, "env"):
        if str(variable.get("name", "")).startswith(ENVIRONMENT_PREFIX):
            raise TemplateError(
                f"{path}.env[{variable['name']}]: {ENVIRONMENT_PREFIX}* is reserved for the "
                "operator"
            )
    for mount in _entries(container, "volumeMounts"):
        if str(mount.get("mountPath", "")).rstrip("/") in _RESERVED_MOUNTS:
            raise TemplateError(
                f"{path}.volumeMounts[{mount['mountPath']}]: reserved for the operator"
            )
