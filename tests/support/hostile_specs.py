"""Specs along the schema of the definition: each field may hold its extremes, what lies beyond
them, or something else altogether. Drawn from a seed.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import yaml

from tests.support.hostile_jobs import JUNK, TEXTS, draw_ordinary_template, draw_template
from tests.support.kube_api import ROOT, Json
from tests.support.specs import SMALLEST

_DEFINITION = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text(encoding="utf-8"))
SPEC: Json = _DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
DEPTHS = (30, 60, 300, 1_400, 5_000, 9_000, 9_999)
"""Objects in one another. The API server takes up to about 9,990."""
PATHS = (
    "../victim", "../../victim/persistentvolumeclaims/payroll", "%2e%2e", "a%2Fb", "?x=1#", ".",
    "..", "//", "a/../../b", "victim\u202e", "\u0000", "\ud800", "名", "a" * 253, "é" * 2_000,
    "${jndi}", "$(rm -rf /)", "{{.}}", "-", "--help", " ", "a\nb", "\U0001f600" * 60,
)  # fmt: skip
"""Texts that are taken for paths, addresses, options, lines or patterns."""
WHOLE = (0, 1, 2, 3, 5, 40, -1, 2**31 - 2, 2**31 - 1, 2**31, 2**53, 2**63 - 1)
REAL = (0, 0.5, 1, 1e-300, 1e300, -0.0, -1e-9, 10, 1e6)
_DEEP = "HERE IT IS DEEP"


def draw_job(random: Random) -> str:
    """JSON of a spec: an ordinary one with up to four fields drawn, or with a drawn template, or
    with one that is very deep. Text, since Python writes nothing that deep.
    """
    spec = copy.deepcopy(SMALLEST)
    kind = random.random()
    if kind < 0.03:
        spec[random.choice(("template", "trainer"))] = {"spec": _DEEP}
        return json.dumps(spec).replace(f'"{_DEEP}"', nested(random.choice(DEPTHS)))
    if kind < 0.3:
        spec["template"] = random.choice((draw_template, draw_ordinary_template))(random)
    for _ in range(random.randint(0 if kind < 0.3 else 1, 4)):
        _change(random, spec)
    return json.dumps(spec)


def nested(levels: int) -> str:
    """JSON of so many objects in one another."""
    return '{"a":' * levels + "1" + "}" * levels


def _change(random: Random, spec: Json) -> None:
    """Draw one field anew, at any depth."""
    section, schema = spec, SPEC
    while True:
        field = random.choice(sorted(schema["properties"]))
        inner = schema["properties"][field]
        if not inner.get("properties") or random.random() < 0.3:
            section[field] = _draw(random, inner)
            return
        if not isinstance(section.get(field), dict):
            section[field] = {}
        section, schema = section[field], inner


def _draw(random: Random, schema: Json) -> Any:
    if random.random() < 0.05:
        return copy.deepcopy(random.choice(JUNK))
    if "enum" in schema:
        return random.choice(schema["enum"])
    draw = _BY_TYPE.get(schema.get("type", ""))
    return draw(random, schema) if draw else random.choice((*WHOLE, *TEXTS, *PATHS))


def _whole(random: Random, schema: Json) -> Any:
    low, high = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
    return random.choice((low, high, low - 1, high + 1, random.choice(WHOLE)))


def _real(random: Random, schema: Json) -> Any:
    return random.choice((schema.get("minimum", 0), schema.get("maximum", 1), random.choice(REAL)))


def _text(random: Random, schema: Json) -> str:
    limit = schema.get("maxLength", 1024)
    extremes = ("", "a" * limit, "a" * (limit + 1), "ä" * limit)
    return random.choice((*TEXTS, *PATHS, *extremes))


def _list(random: Random, schema: Json) -> list[Any]:
    """A few entries, or a short one as often as is possible, or once more."""
    few = [_draw(random, schema["items"]) for _ in range(random.randint(0, 2))]
    most = min(schema.get("maxItems", 8), 300)
    return random.choice((few, few, few, ["a"] * most, ["a"] * (most + 1)))


def _object(random: Random, schema: Json) -> Json:
    if schema.get("x-kubernetes-preserve-unknown-fields") and "properties" not in schema:
        return draw_template(random)
    if "additionalProperties" in schema:
        names = random.sample((*TEXTS, *PATHS, "nvidia.com/gpu", "cpu", "memory"), 2)
        return {name: _draw(random, schema["additionalProperties"]) for name in names}
    fields = schema.get("properties", {})
    chosen = random.sample(sorted(fields), min(len(fields), random.randint(0, 3)))
    required = schema.get("required", ()) if random.random() < 0.9 else ()
    return {field: _draw(random, fields[field]) for field in dict.fromkeys((*chosen, *required))}


_BY_TYPE = {
    "integer": _whole,
    "number": _real,
    "string": _text,
    "boolean": lambda random, _: random.choice((True, False)),
    "array": _list,
    "object": _object,
}
