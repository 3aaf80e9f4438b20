"""Generates the CustomResourceDefinition from the models of `api`.

    python -m regroup_operator.api.crd            writes manifests/crd.yaml and the chart's copy
    python -m regroup_operator.api.crd --check    fails when they are not what would be written

A structural schema allows neither `$ref` nor unions, so that pydantic's JSON schema is flattened.
Every list, map and string has a maximum: the API server estimates the cost of each rule from them.
Defaults are not part of the schema; the descriptions name them. The API server would store them in
every object, and a user who gives one explicitly would seem to change the spec. `replicas` is the
exception, because `kubectl scale` fails without it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regroup_operator.api.resource import GROUP, KIND, NAME_LIMIT, NAME_PATTERN, PLURAL, VERSION
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.status import RENAMED, RENAMED_IN_RECOVERIES, TrainingJobStatus
from regroup_trainer.protocol.config import TrainingConfig

Schema = dict[str, Any]

DEFAULTS: dict[str, int] = {"replicas": 1}
"""The defaults that the API server fills in."""

FIXED = {"launcher": "regroup", "managedBy": ""}
"""Fields of spec that never change -> the value of an absent one."""

_TRAINING = [
    str(field.alias)
    for name, field in TrainingConfig.model_fields.items()
    if name not in ("steps", "non_finite")
]
FIXED_UNLESS_SUSPENDED = (
    "nprocPerNode",
    "image",
    "resources",
    "template",
    "progressPattern",
    *(
        f"trainer.{section}"
        for section in ("model", "data", "parallelism", "optimizer", "evaluation")
    ),
    *(f"trainer.training.{field}" for field in _TRAINING),
    *(f"checkpoint.{field}" for field in ("storage", "onTermination", "terminationGraceSeconds")),
    "resume",
    "cleanPodPolicy",
    "scheduling",
)
"""Fields of spec that only change while the job is suspended."""

FIXED_WHILE_RESUMING = (
    "trainer.data",
    "trainer.training.seed",
    "trainer.training.globalBatchSize",
    "trainer.training.sequenceLength",
)
"""Fields of spec that a checkpoint depends on. They only change together with `resume.policy:
Never`.
"""


# --- rules ----------------------------------------------------------------------------------------


def _optional(owner: str, path: str) -> str:
    """A CEL expression of optional type for a field of spec. It is none when the field or a parent
    of it is absent.
    """
    return f"{owner}.spec" + "".join(f".?{part}" for part in path.split("."))


def _or(path: str, owner: str, absent: str) -> str:
    return f"(has({owner}.spec.{path}) ? {owner}.spec.{path} : '{absent}')"


def _given(owner: str, path: str) -> str:
    """A CEL expression: whether the field and all its parents are present."""
    return f"{_optional(owner, path)}.hasValue()" if "." in path else f"has({owner}.spec.{path})"


def _unchanged(path: str) -> str:
    """A CEL expression: the field is equal, or absent on both sides. (To compare optionals would be
    shorter, but the API server estimates its cost as unbounded.)
    """
    given, was_given = _given("self", path), _given("oldSelf", path)
    return f"({given} ? {was_given} && self.spec.{path} == oldSelf.spec.{path} : !({was_given}))"


_WAS_SUSPENDED = (
    "has(oldSelf.status) && has(oldSelf.status.conditions) && "
    "oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True')"
)
_STEPS = "trainer.training.steps"
_DEFAULT_STEPS = TrainingConfig.model_fields["steps"].default
_GROWS = {
    _STEPS: f"{_optional('self', _STEPS)}.orValue({_DEFAULT_STEPS}) >= "
    f"{_optional('oldSelf', _STEPS)}.orValue({_DEFAULT_STEPS})"
}


def object_rules() -> list[Schema]:
    """Rules on every object: its name, and pairs of fields that may contradict each other."""
    minimum, maximum = (
        "self.spec.?elasticPolicy.?minReplicas",
        "self.spec.?elasticPolicy.?maxReplicas",
    )
    storage = "self.spec.?checkpoint.?storage"
    return [
        _rule(
            f"self.metadata.name.size() <= {NAME_LIMIT} && "
            f"self.metadata.name.matches('^{NAME_PATTERN}$')",
            f"metadata.name must be at most {NAME_LIMIT} characters of a-z, 0-9 and '-', starting "
            "with a letter: "
            "pods and services are named after it",
        ),
        _rule(
            f"{minimum}.orValue(1) <= {maximum}.orValue(100000)",
            "spec.elasticPolicy.minReplicas must not be above spec.elasticPolicy.maxReplicas",
        ),
        _rule(
            f"self.spec.replicas >= {minimum}.orValue(1)",
            "spec.replicas must not be below spec.elasticPolicy.minReplicas",
        ),
        _rule(
            f"self.spec.replicas <= {maximum}.orValue(100000)",
            "spec.replicas must not be above spec.elasticPolicy.maxReplicas",
        ),
        _rule(
            f"!has(self.spec.elasticPolicy) || {storage}.hasValue()",
            "spec.checkpoint.storage is needed by elastic jobs: name a PersistentVolumeClaim",
        ),
        _rule(
            f"self.spec.?checkpoint.?retentionPolicy.orValue('Retain') != 'Delete' || "
            f"{storage}.?volumeClaimTemplate.hasValue()",
            "spec.checkpoint.retentionPolicy Delete is only possible with "
            "spec.checkpoint.storage.volumeClaimTemplate",
        ),
        _rule(
            "!has(self.spec.nprocPerNode) || (type(self.spec.nprocPerNode) == int ? "
            "(self.spec.nprocPerNode >= 1 && self.spec.nprocPerNode <= 1024) : "
            "self.spec.nprocPerNode == 'auto')",
            "spec.nprocPerNode must be 'auto' or a number between 1 and 1024",
        ),
    ]


def transition_rule() -> Schema:
    """What may change, in one rule that is true at once where the spec stays as it is. The API
    server evaluates it at each write of a status, too: 33 rules of their own took as much of its
    time as all else of such a write. The message names all that must not change.

    It belongs to the root, because a rule on an optional field is skipped when the field is added
    or removed.
    """
    groups = (
        _ChangeRules(
            "",
            {
                path: f"{_or(path, 'self', absent)} == {_or(path, 'oldSelf', absent)}"
                for path, absent in FIXED.items()
            },
            "never changes: delete the job and create another",
        ),
        _ChangeRules(
            "self.spec.?resume.?policy.orValue('Latest') == 'Never'",
            {path: _unchanged(path) for path in FIXED_WHILE_RESUMING},
            "stays as it is while spec.resume.policy is not Never: the checkpoints depend on it",
        ),
        _ChangeRules(
            _WAS_SUSPENDED,
            {path: _unchanged(path) for path in FIXED_UNLESS_SUSPENDED},
            "only changes while the job is suspended (condition Suspended)",
        ),
        _ChangeRules(
            _WAS_SUSPENDED,
            {"trainer": "has(self.spec.trainer) == has(oldSelf.spec.trainer)"},
            "only comes or goes while the job is suspended",
        ),
        _ChangeRules(_WAS_SUSPENDED, _GROWS, "only grows while the job is not suspended"),
    )
    return {
        "rule": f"self.spec == oldSelf.spec || ({' && '.join(map(_ChangeRules.rule, groups))})",
        "messageExpression": " + ".join(map(_ChangeRules.broken, groups)),
        "message": "a field of spec must not change, or not while the job runs",
    }


@dataclass(frozen=True)
class _ChangeRules:
    """Rules on changes of fields, one each. CEL expressions."""

    unless: str
    """When none of them holds; empty: never."""
    rules: Mapping[str, str]
    """By the path of the field, below spec."""
    message: str
    """What follows the path."""

    def rule(self) -> str:
        """Whether nothing is wrong."""
        every = " && ".join(self.rules.values())
        return f"({self.unless} || ({every}))" if self.unless else f"({every})"

    def broken(self) -> str:
        """A sentence for each that is wrong. (A list that is filtered and joined would be shorter,
        but the API server estimates its cost as unbounded.)
        """
        said = " + ".join(
            f"({rule} ? '' : 'spec.{path} {self.message}. ')" for path, rule in self.rules.items()
        )
        return f"({self.unless} ? '' : {said})" if self.unless else f"({said})"


def _rule(expression: str, message: str) -> Schema:
    return {"rule": expression, "message": message}


_EXACTLY_ONE_STORAGE = _rule(
    "[has(self.persistentVolumeClaim), has(self.volumeClaimTemplate), has(self.emptyDir)]"
    ".filter(given, given).size() == 1",
    "give exactly one of persistentVolumeClaim, volumeClaimTemplate, emptyDir",
)
_ONE_INTERVAL = _rule(
    "!(has(self.intervalSeconds) && has(self.intervalSteps))",
    "give intervalSeconds or intervalSteps, not both",
)
_RESUME_PAIRS = [
    _rule(
        f"(self.?policy.orValue('Latest') == '{policy}') == has(self.{field})",
        f"policy {policy} and the field {field} belong together",
    )
    for policy, field in (("Step", "step"), ("Job", "jobName"))
]


# --- schema ---------------------------------------------------------------------------------------


def spec_schema() -> Schema:
    """The structural schema of spec."""
    schema = _flatten(TrainingJobSpec.model_json_schema(by_alias=True))
    properties = schema["properties"]
    for name, value in DEFAULTS.items():
        properties[name]["default"] = value
    _preserve_unknown(properties["trainer"])
    properties["template"] = {
        "type": "object",
        "description": properties["template"]["description"],
        "x-kubernetes-preserve-unknown-fields": True,
    }
    checkpoint = properties["checkpoint"]
    checkpoint["x-kubernetes-validations"] = [_ONE_INTERVAL]
    checkpoint["properties"]["storage"]["x-kubernetes-validations"] = [_EXACTLY_ONE_STORAGE]
    properties["resume"]["x-kubernetes-validations"] = _RESUME_PAIRS
    return schema


def status_schema() -> Schema:
    """The structural schema of status."""
    schema = _flatten(TrainingJobStatus.model_json_schema(by_alias=True, mode="serialization"))
    _loosen(schema)
    _keep_former_names(schema, RENAMED)
    _keep_former_names(schema["properties"]["recoveries"]["items"], RENAMED_IN_RECOVERIES)
    conditions = schema["properties"]["conditions"]
    # One writer has all of it. Noting whose each field is takes the API server as long as the rest.
    schema["x-kubernetes-map-type"] = "atomic"
    conditions["x-kubernetes-list-type"] = "map"
    conditions["x-kubernetes-list-map-keys"] = ["type"]
    conditions["items"]["required"] = ["type", "status", "reason", "lastTransitionTime"]
    return schema


def _keep_former_names(schema: Schema, renamed: dict[str, str]) -> None:
    """Keep the fields of release 0.1: the API server drops those that are not in the schema."""
    properties = schema["properties"]
    for former, name in renamed.items():
        properties[former] = {
            **properties[name],
            "description": f"Deprecated: the name of {name} in release 0.1. Read, never written.",
        }


def _loosen(schema: Schema) -> None:
    """Require no field and bound no number. Only the operator writes the status, and its models
    check it.
    """
    for key in ("required", "minimum", "maximum"):
        schema.pop(key, None)
    for child in (
        *schema.get("properties", {}).values(),
        *(schema[k] for k in ("items",) if k in schema),
    ):
        _loosen(child)


def _preserve_unknown(schema: Schema) -> None:
    """Keep unknown fields, so that the operator can name a misspelt one. The API server would drop
    it silently.
    """
    if schema.get("type") == "object" and "properties" in schema:
        schema["x-kubernetes-preserve-unknown-fields"] = True
        for child in schema["properties"].values():
            _preserve_unknown(child)


def _flatten(root: Schema) -> Schema:
    """A JSON schema of pydantic without `$ref`, unions, titles and defaults."""
    return _flattened(root, root.get("$defs", {}))


_KEPT = (
    "type", "format", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern",
    "minItems", "maxItems",
    "minProperties", "maxProperties", "required",
)  # fmt: skip


def _flattened(node: Schema, definitions: Schema) -> Schema:
    node = resolved(node, definitions)
    description = node.get("description")
    result: Schema = {"description": " ".join(description.split())} if description else {}
    result |= {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in node:  # OpenAPI v3.0 has the bound and a flag
            result |= {limit: node[bound], bound: True}
    if "x-kubernetes-int-or-string" in node:
        result["x-kubernetes-int-or-string"] = True
    if "properties" in node:
        result["properties"] = {
            name: _flattened(child, definitions) for name, child in node["properties"].items()
        }
    if "items" in node:
        result["items"] = _flattened(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _flattened(node["additionalProperties"], definitions)
    return result


def resolved(node: Schema, definitions: Schema) -> Schema:
    """A node of pydantic's JSON schema without references and unions at its top. What stands beside
    a reference wins.
    """
    while "$ref" in node or "anyOf" in node or "allOf" in node:
        node = _without_indirection(node, definitions)
    return node


def _without_indirection(node: Schema, definitions: Schema) -> Schema:
    rest = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "allOf")}
    if "$ref" in node:
        return {**definitions[node["$ref"].removeprefix("#/$defs/")], **rest}
    options = [
        option
        for option in (node.get("anyOf") or node.get("allOf") or [])
        if option.get("type") != "null"
    ]
    if len(options) == 1:
        return {**options[0], **rest}
    limits = {
        key: value for option in options for key, value in option.items() if key == "maxLength"
    }
    return {**rest, **limits, "x-kubernetes-int-or-string": True}


_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Workers", "integer", ".status.readyReplicas", 0),
    ("Step", "integer", ".status.progress.step", 0),
    ("Progress", "integer", ".status.progress.percentage", 0),
    ("Ckpt", "integer", ".status.checkpoint.lastStep", 0),
    ("Restarts", "integer", ".status.restartCount", 0),
    ("Goodput", "number", ".status.goodput.ratio", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Ranks", "integer", ".status.worldSize", 1),
    ("Generation", "string", ".status.rendezvousGeneration", 1),
    ("Remaining", "integer", ".status.progress.remainingSeconds", 1),
    ("Message", "string", ".status.message", 1),
)
"""The columns of `kubectl get`: name, type, path, priority (1: only with -o wide)."""

_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
"""What `kubectl scale` and autoscalers read and write."""


def definition() -> Schema:
    """The whole CustomResourceDefinition, as it is written to the manifests and the chart."""
    root: Schema = {
        "description": "An elastic, fault-tolerant training run.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": status_schema(),
        },
        "x-kubernetes-validations": [*object_rules(), transition_rule()],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "additionalPrinterColumns": [
            {
                "name": name,
                "type": kind,
                "jsonPath": path,
                **({"priority": priority} if priority else {}),
            }
            for name, kind, path, priority in _COLUMNS
        ],
        "subresources": {"status": {}, "scale": _SCALE},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["tj"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


# --- files ----------------------------------------------------------------------------------------

_NOTE = (
    "# Generated by `python -m regroup_operator.api.crd` from the models beside it, in "
    "operator/regroup_operator/api: edit those.\n"
)
_CHART_METADATA = """\
metadata:
  name: {name}
  {{{{- $kept := ternary (dict "helm.sh/resource-policy" "keep") (dict) .Values.crds.keep }}}}
  {{{{- include "regroup.marks" (dict "in" . "annotations" $kept) | nindent 2 }}}}
"""


def rendered() -> dict[str, str]:
    """Path below the repository's root -> content."""
    document = definition()
    plain = _yaml(document)
    head = {key: document[key] for key in ("apiVersion", "kind")}
    body = _yaml({"spec": document["spec"]})
    chart = (
        "{{- if .Values.crds.enabled }}\n"
        + "".join(f"{key}: {value}\n" for key, value in head.items())
        + _CHART_METADATA.format(name=document["metadata"]["name"])
        + body
        + "{{- end }}\n"
    )
    return {"manifests/crd.yaml": _NOTE + plain, "charts/regroup/templates/crd.yaml": _NOTE + chart}


def _yaml(document: Schema) -> str:
    """YAML with the innermost mappings on one line: a third of the size, and easier to read."""
    return yaml.safe_dump(document, sort_keys=False, width=100_000, default_flow_style=None)


def main(arguments: list[str]) -> int:
    """Write the files, or with --check name the stale ones. Returns the exit code."""
    root = Path(__file__).resolve().parents[3]
    stale = [
        path
        for path, text in rendered().items()
        if not (root / path).exists() or (root / path).read_text() != text
    ]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is stale: run `python -m regroup_operator.api.crd`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(rendered()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
