"""What a pod template must not be: of other types than Kubernetes' own, or with fields that the
operator relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regroup_operator.api import names
from regroup_operator.api.pod_types import find_mismatch
from regroup_operator.api.template_merge import MERGE_KEYS
from regroup_operator.errors import TemplateError
from regroup_trainer.protocol.environment import ENVIRONMENT_PREFIX, TOKEN_FILE, USER_VARIABLES
from regroup_trainer.protocol.message import quote, shorten

MOST_LEVELS = 64
"""Objects and lists inside each other. Kubernetes' own fields need about twenty."""


def check_template(template: Mapping[str, Any]) -> None:
    """Raises TemplateError, which names the field, the value and what to do, when the template
    is no part of a pod, or sets what the operator relies on.
    """
    _refuse_directives(template, "spec.template")
    for part in template:
        if part not in ("metadata", "spec"):
            raise TemplateError(
                f"spec.template.{shorten(part)}: unknown field: a pod template has metadata and "
                "spec"
            )
    _check_types(template)
    _check_metadata(template.get("metadata") or {})
    _check_spec(template.get("spec") or {})


def _refuse_directives(node: Any, path: str, level: int = 0) -> None:
    """Refuse directives of a patch, keys that are no text, and what is nested too deeply to be
    looked at.
    """
    if level > MOST_LEVELS:
        raise TemplateError(f"spec.template: has more than {MOST_LEVELS} levels: make it flatter")
    if isinstance(node, Mapping):
        for key, value in node.items():
            if not isinstance(key, str):
                raise TemplateError(f"{path}: the key {quote(key)} must be a string")
            if key.startswith("$"):
                raise TemplateError(
                    f"{path}.{shorten(key)}: patch directives are not possible here: leave it out"
                )
            _refuse_directives(value, f"{path}.{shorten(key)}", level + 1)
    elif isinstance(node, list):
        for position, entry in enumerate(node):
            _refuse_directives(entry, f"{path}[{position}]", level + 1)


_NEVER_REMOVED = {
    "PodTemplateSpec": ("metadata", "spec"),
    "PodSpec": ("containers", "volumes"),
    "Container": ("env", "volumeMounts", "image"),
}
"""Fields that every worker needs: null, which removes others, is not possible there."""


def _check_types(template: Mapping[str, Any]) -> None:
    _refuse_null(template, "PodTemplateSpec", "spec.template")
    if problem := find_mismatch(template, "PodTemplateSpec", "spec.template", whole=False):
        raise TemplateError(problem)
    spec = template.get("spec") or {}
    _refuse_null(spec, "PodSpec", "spec.template.spec")
    _require_keys(spec, "spec.template.spec")
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            _require_keys(container, f"spec.template.spec.{kind}[{container['name']}]")
            if container["name"] == names.MAIN_CONTAINER:
                path = f"spec.template.spec.{kind}[{names.MAIN_CONTAINER}]"
                _refuse_null(container, "Container", path)


def _refuse_null(given: Mapping[str, Any], kind: str, path: str) -> None:
    for field in _NEVER_REMOVED[kind]:
        if field in given and given[field] is None:
            raise TemplateError(
                f"{path}.{field}: got None, which would remove what every worker needs: leave it "
                "out, or give a value"
            )


def _require_keys(owner: Mapping[str, Any], path: str) -> None:
    """Every entry of a list that is merged needs the field by which it is merged."""
    for field, key in MERGE_KEYS.items():
        for place, entry in enumerate(owner.get(field) or ()):
            if entry.get(key) is None:
                raise TemplateError(
                    f"{path}.{field}[{place}].{key}: is missing: an entry of {field} needs it"
                    f"{_MAIN_NAMED if field == 'containers' else ''}"
                )


_MAIN_NAMED = f" (the main one is {names.MAIN_CONTAINER!r})"


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    for field in metadata:
        if field not in ("labels", "annotations"):
            raise TemplateError(
                f"spec.template.metadata.{shorten(field)}: reserved for the operator: give only "
                "labels and annotations"
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
    for volume in spec.get("volumes") or ():
        if volume["name"] in _RESERVED_VOLUMES:
            raise TemplateError(
                f"spec.template.spec.volumes[{volume['name']}]: reserved for the operator"
            )
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            _check_container(container, f"spec.template.spec.{kind}[{container['name']}]")


def _check_container(container: Mapping[str, Any], path: str) -> None:
    if container["name"] == names.INJECTOR:
        raise TemplateError(f"{path}: this name is reserved for the operator")
    for field in _RESERVED_IN_MAIN:
        if field in container:
            raise TemplateError(f"{path}.{field}: reserved for the operator")
    for variable in container.get("env") or ():
        name = variable["name"]
        if name.startswith(ENVIRONMENT_PREFIX) and name not in USER_VARIABLES:
            raise TemplateError(
                f"{path}.env[{name}]: {ENVIRONMENT_PREFIX}* is reserved for the operator, but for "
                + ", ".join(USER_VARIABLES)
            )
    for mount in container.get("volumeMounts") or ():
        if mount["mountPath"].rstrip("/") in _RESERVED_MOUNTS:
            raise TemplateError(
                f"{path}.volumeMounts[{mount['mountPath']}]: reserved for the operator"
            )
