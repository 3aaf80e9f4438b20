"""Specs about as large as the operator takes, and larger ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from regroup_operator.api.spec_reader import MOST_CHARACTERS, MOST_VALUES
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from tests.support.kube_api import Json
from tests.support.specs import SMALLEST

MOST_BYTES = 1_300_000
"""Of a spec, about. The API server takes objects of 1.5 MB."""
SCRIPT: Json = {name: part for name, part in SMALLEST.items() if name != "trainer"}


def with_main(**fields: Any) -> Json:
    """A spec with these fields in its main container."""
    return {**SCRIPT, "template": {"spec": {"containers": [{"name": "trainer", **fields}]}}}


def with_pod(**fields: Any) -> Json:
    """A spec with these fields in its pod template."""
    return {**SMALLEST, "template": {"spec": fields}}


def make_large(kind: str, count: int) -> Json:
    """A spec with so many parts of a kind, which some reader looks at one by one."""
    numbers = range(count)
    kinds = {
        "flags of Python": lambda: with_main(command=["python", *["-u"] * count, "train.py"]),
        "flags of torchrun": lambda: with_main(command=["torchrun", *["-h"] * count, "train.py"]),
        "arguments": lambda: with_main(command=["python", "train.py"], args=["a"] * count),
        "words for a shell": lambda: with_main(command=["bash", "-c", "\\n" * count]),
        "variables": lambda: with_main(env=[{"name": f"A{n}"} for n in numbers]),
        "limits": lambda: with_main(resources={"limits": {f"a/a{n}": "1e9" for n in numbers}}),
        "mounts": lambda: with_main(
            volumeMounts=[{"name": "scratch", "mountPath": f"/{n}"} for n in numbers]
        ),
        "tolerations": lambda: with_pod(tolerations=[{}] * count),
        "volumes": lambda: with_pod(volumes=[{"name": f"a{n}"} for n in numbers]),
        "unknown fields": lambda: with_pod(unknown=[[]] * count),
        "wrong paths": lambda: {**SMALLEST, "trainer": {"data": {"paths": [{}] * count}}},
        "wrong fields": lambda: {**SMALLEST, "trainer": {f"a{n}": 1 for n in numbers}},
    }
    return kinds[kind]()


KINDS = (
    "flags of Python", "flags of torchrun", "arguments", "words for a shell", "variables", "limits",
    "mounts", "tolerations", "volumes", "unknown fields", "wrong paths", "wrong fields",
)  # fmt: skip

NOT_IN_CRD = ("wrong paths", "wrong fields")
"""What the CRD does not allow or does not know. The time that the API server takes for them grows
with the square of their number: 100,000 fields keep it busy for a quarter of a minute, and 300,000
entries for minutes after the request is over (docs/security.md).
"""


def make_wide(workers: int, spares: int = 0) -> Json:
    """A job of so many workers in all, of which one is enough to train."""
    replicas = workers - spares
    elastic = {"minReplicas": 1, "maxReplicas": replicas}
    return {**SMALLEST, "replicas": replicas, "spares": spares, "elasticPolicy": elastic}


def draw_wide(random: Random, workers: int) -> Json:
    """A job of about `workers` workers; in one of four, one more than any installation allows."""
    if random.random() < 0.25:
        return make_wide(DEFAULT_MAX_WORKERS + 1)
    return make_wide(workers - random.randint(0, 1), random.choice((0, 1, workers // 2)))


def draw_large(random: Random) -> Json:
    """A spec about as large as is read, by its characters or the number of its values. In half of
    all cases each pod is as large.
    """
    script = ["python", "train.py"]
    long = [{"name": "A", "value": "x" * (MOST_CHARACTERS - 5_000)}]
    many = [{"name": f"A{number}", "value": "x"} for number in range(MOST_VALUES // 3 - 50)]
    given = random.choice((long, many, None, None))
    if given is not None:
        return with_main(command=script, env=given)
    return make_large(random.choice(KINDS), MOST_VALUES // 4)


def draw_too_large(random: Random) -> Json:
    """A spec that the API server stores, and that is refused by its size."""
    kind = random.choice([kind for kind in KINDS if kind not in NOT_IN_CRD])
    each = len(json.dumps(make_large(kind, MOST_VALUES))) / MOST_VALUES
    return make_large(kind, int(MOST_BYTES / each))
