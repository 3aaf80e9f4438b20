"""The generator: fresh files, a size that fits, a schema that Kubernetes calls structural."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regroup_operator.api import crd


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
