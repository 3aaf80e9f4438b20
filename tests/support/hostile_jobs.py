"""TrainingJobs that no reasonable user writes, drawn from a seed: pod templates along Kubernetes'
own types, and specs with extremes in any field.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests.support.kube_api import ROOT, Json
from tests.support.specs import SMALLEST

TYPES: Json = json.loads(
    (ROOT / "operator/regroup_operator/api/pod_schema.json").read_text(encoding="utf-8")
)["types"]
JUNK: tuple[Any, ...] = (
    None, 0, 7, -1, 2**31, 2**63 - 1, 1.5, True, False, "", "banana", "A b", "a" * 300, "../x",
    "\n", [], {}, [None], [7], [[]], {"": ""}, {"a": None}, {"$patch": "delete"}, "x" * 5000,
)  # fmt: skip
TEXTS = ("a", "trainer", "data", "/data", "1Gi", "500m", "Never", "TCP", "zone", "${A}", "ä", "a=b")
NUMBERS = (0, 1, 2, 80, 65535, 65536, -1, 2**31 - 1, 2**31)
MOST_LEVELS = 8


def draw_template(random: Random) -> Json:
    """A pod template: of the right shape where chance has it so."""
    template = _object(random, "PodTemplateSpec", 0)
    if random.random() < 0.7 and isinstance(template.get("spec"), dict):
        given = template["spec"].get("containers")
        first = given[0] if isinstance(given, list) and given else {}
        main = first if isinstance(first, dict) else {}
        template["spec"]["containers"] = [{**main, "name": "trainer"}]
    return template


def draw_ordinary_template(random: Random) -> Json:
    """A pod template with one field of the pod and one of its main container, both of their type
    where chance has it so.
    """
    pod = random.choice(sorted(TYPES["PodSpec"]["fields"].keys() - {"containers"}))
    field = random.choice(sorted(TYPES["Container"]["fields"].keys() - {"name"}))
    container = {"name": "trainer", field: _field(random, "Container", field)}
    return {"spec": {"containers": [container], pod: _field(random, "PodSpec", pod)}}


def _field(random: Random, kind: str, field: str) -> Any:
    return _value(random, TYPES[kind]["fields"][field], MOST_LEVELS - 3)


def draw_spec(random: Random) -> Json:
    """A spec with junk in up to three places."""
    spec = copy.deepcopy(SMALLEST)
    for _ in range(random.randint(1, 3)):
        section = random.choice([spec, *(part for part in spec.values() if isinstance(part, dict))])
        section[random.choice([*section, *FIELDS])] = copy.deepcopy(random.choice(JUNK))
    return spec


FIELDS = (
    "replicas", "spares", "suspend", "nprocPerNode", "image", "template", "resources", "scheduling",
    "elasticPolicy", "restartPolicy", "cleanPodPolicy", "launcher", "progressPattern", "resume",
    "ttlSecondsAfterFinished", "activeDeadlineSeconds", "networkPolicy", "checkpoint", "trainer",
)  # fmt: skip
"""Fields of a spec, wherever they may be put."""


def _object(random: Random, kind: str, level: int) -> Json:
    fields, required = TYPES[kind]["fields"], TYPES[kind]["required"]
    chosen = random.sample(sorted(fields), min(len(fields), random.randint(1, 3)))
    if random.random() < 0.8:
        chosen += [field for field in (*required, "spec", "containers") if field in fields]
    return {field: _value(random, fields[field], level + 1) for field in dict.fromkeys(chosen)}


def _value(random: Random, kind: str, level: int) -> Any:
    if level > MOST_LEVELS or random.random() < 0.02:
        return copy.deepcopy(random.choice(JUNK))
    if kind.startswith("["):
        return [_value(random, kind[1:-1], level + 1) for _ in range(random.randint(0, 2))]
    if kind.startswith("{"):
        return {random.choice(TEXTS): _value(random, kind[1:-1], level + 1)}
    if kind in TYPES:
        return _object(random, kind, level)
    return random.choice({"boolean": (True, False), "string": TEXTS}.get(kind, NUMBERS))
