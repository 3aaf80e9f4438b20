"""What -o chooses: text, wide text, JSON, YAML or names. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from regroup_operator.api.resource import Object
from regroup_operator.api.timestamps import format_time


def as_list(objects: list[Object]) -> Object:
    """Several objects in one, as kubectl prints them."""
    return {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects}


def structured(value: object, form: str) -> str:
    """A value as JSON or YAML."""
    plain = _plain(value)
    if form == "json":
        return json.dumps(plain, indent=2)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip("\n")


def structured_line(value: object) -> str:
    """A value as JSON in one line."""
    return json.dumps(_plain(value))


def _plain(value: object) -> Any:
    """Reports are dataclasses; their names become those of JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {to_camel(f.name): _plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def without_managed_fields(document: Object) -> Object:
    """An object as kubectl prints it."""
    metadata = {k: v for k, v in document.get("metadata", {}).items() if k != "managedFields"}
    return {**document, "metadata": metadata}
