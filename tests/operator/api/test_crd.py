"""The generator: fresh files, a size that fits, a schema that Kubernetes calls structural."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from regroup_operator.api import crd
from regroup_trainer.protocol.config import Section


def walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and every one below it."""
    yield schema
    below = [
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    for child in filter(None, below):
        yield from walk(child)


def test_the_files_are_as_they_would_be_written() -> None:
    assert crd.main(["--check"]) == 0


def test_the_definition_is_small() -> None:
    """`kubectl apply` keeps it in an annotation, which may have four times as much."""
    assert len(crd.rendered()["manifests/crd.yaml"].encode()) < 70_000


def test_every_string_list_and_map_has_a_maximum() -> None:
    limits = {"string": "maxLength", "array": "maxItems"}
    for schema in (crd.spec_schema(), crd.status_schema()):
        for node in walk(schema):
            kind = node.get("type")
            if kind in limits and "enum" not in node:
                assert limits[kind] in node, node
            if "additionalProperties" in node:
                assert "maxProperties" in node, node


def test_every_field_of_the_spec_documents_itself() -> None:
    for node in walk(crd.spec_schema()):
        for name, field in node.get("properties", {}).items():
            assert field.get("description"), name


def test_only_replicas_has_a_default() -> None:
    found = [node["default"] for node in walk(crd.spec_schema()) if "default" in node]
    assert found == [1]


def sections(base: type[Section]) -> Iterator[type[Section]]:
    """Yield the models of the parts of a spec."""
    for kind in base.__subclasses__():
        yield kind
        yield from sections(kind)


def shown(default: object) -> str:
    """A default as the texts of fields write it."""
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_a_default_that_a_text_names_is_that_of_the_field() -> None:
    named = {
        f"{section.__name__}.{name}": (match[1], shown(field.default))
        for section in sections(Section)
        for name, field in section.model_fields.items()
        if (match := re.search(r"\bDefault (\S+)\.\s*$", field.description or ""))
    }
    assert len(named) > 20
    assert {name: both for name, both in named.items() if both[0] != both[1]} == {}
