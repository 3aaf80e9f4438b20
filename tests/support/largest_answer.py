"""The largest answer that a coordinator may give: each text and list as long as it may be."""

from __future__ import annotations

from typing import Any

from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.message import PROTOCOL_VERSION, TEXT_LIMIT

_SCHEMA = CoordinatorStatus.model_json_schema()
_MOST = 2**31 - 1


def draw_largest_answer(**fields: Any) -> dict[str, Any]:
    """As JSON has it, of term 1; `fields` override."""
    return {**_largest(_SCHEMA), "protocol": PROTOCOL_VERSION, "term": 1, **fields}


def _largest(schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _largest(_SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return _largest(next(kind for kind in schema["anyOf"] if kind.get("type") != "null"))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][-1]
    return _BY_TYPE[schema["type"]](schema)


_BY_TYPE: dict[str, Any] = {
    "string": lambda schema: "X" * schema.get("maxLength", TEXT_LIMIT),
    "integer": lambda schema: min(_MOST, schema.get("maximum", _MOST)),
    "number": lambda _: 1e9,
    "boolean": lambda _: True,
    "array": lambda schema: (
        [_largest(one) for one in schema["prefixItems"]]
        if "prefixItems" in schema
        else [_largest(schema["items"])] * schema.get("maxItems", 3)
    ),
    "object": lambda schema: {
        name: _largest(inner) for name, inner in schema.get("properties", {}).items()
    },
}
