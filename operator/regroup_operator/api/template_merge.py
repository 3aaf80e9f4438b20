"""Kubernetes' strategic merge of a partial pod template over the operator's.

Objects are merged deeply. A list is merged by the key that the OpenAPI document names for it
(`x-kubernetes-patch-merge-key`); other lists are replaced. Null removes a field. Directives such as
`$patch` are refused: a template describes a result, not an edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
