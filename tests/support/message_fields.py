"""The fields of a message, as a tree: those of what it holds are below its own. Where only some
words are taken, as values or as names, these are listed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from regroup_trainer.protocol.message import Message

Json = dict[str, Any]


def fields_of(message: type[Message]) -> Json:
    """As its own JSON names them."""
    schema = message.model_json_schema(by_alias=False)
    fields: Json = _fields(schema.get("$defs", {}), schema)
    return fields


def _fields(definitions: Json, schema: Json) -> Any:
    fields = partial(_fields, definitions)
    if "$ref" in schema:
        return fields(definitions[schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return sorted(schema["enum"])
    if "properties" in schema:
        return {name: fields(inner) for name, inner in schema["properties"].items()}
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("propertyNames")]
    return next(filter(None, map(fields, filter(None, inner))), {})


def unknown(document: Json, fields: Json, path: str = "") -> list[str]:
    """Paths in `document` that are not in the tree of `fields`."""
    found = []
    for name, value in document.items():
        if name not in fields:
            found.append(path + name)
        elif isinstance(value, dict) and fields[name]:
            found += unknown(value, fields[name], f"{path}{name}.")
    return found
