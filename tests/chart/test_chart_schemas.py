"""What the chart renders is valid in each version of Kubernetes that it may be installed in: by the
OpenAPI of these versions, where no field is unknown.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.chart import Json, Objects, render

VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
ALL_ON = (
    "admissionPolicy.enabled=true",
    'commonAnnotations={"a": "b"}',
    'imagePullSecrets=["mine"]',
    'podAnnotations={"a": "b"}',
    'priorityClassName="high"',
    'nodeSelector={"a": "b"}',
    'tolerations=[{"key": "a", "operator": "Exists"}]',
    f"topologySpreadConstraints={json.dumps([SPREAD])}",
)
SOME_NAMESPACES = (*ALL_ON, 'watch={"namespaces": ["a", "b"], "nodes": false}')
_FOLDER = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"


class Schemas:
    """The types of one version of Kubernetes."""

    def __init__(self, version: str) -> None:
        self._folder = _FOLDER / f"v{version}.0-local-strict"
        definitions = json.loads((self._folder / "_definitions.json").read_text())
        self._registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()

    def complaints(self, found: Json) -> list[str]:
        """What is wrong with an object."""
        group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", found["apiVersion"])
        file = self._folder / f"{found['kind'].lower()}-{group}.json"
        schema = json.loads(file.read_text())
        validator = Draft202012Validator(schema, registry=self._registry)
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]


@functools.cache
def schemas(version: str) -> Schemas:
    return Schemas(version)


def complaints(objects: Objects, version: str) -> dict[tuple[str, str], list[str]]:
    known = schemas(version)
    all_found = {name: known.complaints(found) for name, found in objects.items()}
    return {name: found for name, found in all_found.items() if found}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("settings", [ALL_ON, SOME_NAMESPACES])
def test_all_that_is_rendered_is_valid(settings: tuple[str, ...], version: str) -> None:
    assert complaints(render(*settings), version) == {}


def test_a_field_that_a_version_does_not_know_is_found() -> None:
    objects = render('affinity={"nodeAffinty": {}}')
    (wrong,) = complaints(objects, "1.30").values()
    assert "nodeAffinty" in wrong[0]
