"""Replica groups follow from the parallelism and the ranks of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.api.replica_groups import workers_per_group
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.spec_reader import InvalidSpecError, parse_spec
from regroup_operator.api.support import unsupported
from tests.support.operator_simulation import make_spec

FIELDS = {"strategy": "hsdp", "shardGroupSize": 2, "tensorParallel": 2}


def spec(parallelism: dict[str, Any], **fields: Any) -> TrainingJobSpec:
    sizes = {"replicas": 8, "elasticPolicy": {"minReplicas": 8, "maxReplicas": 8}, **fields}
    return parse_spec(make_spec(trainer={"parallelism": parallelism}, **sizes))


@pytest.mark.parametrize(
    ("parallelism", "nproc", "workers"),
    [
        ({}, 1, 1),
        ({}, 4, 1),
        ({"strategy": "fsdp"}, 4, 1),
        ({"strategy": "hsdp", "shardGroupSize": 4}, 1, 4),
        ({"strategy": "hsdp", "shardGroupSize": 4}, 2, 2),
        ({"tensorParallel": 2, "pipelineParallel": 2, "contextParallel": 2}, 4, 2),
        (FIELDS, 8, 1),
    ],
)
def test_a_group_is_as_many_workers_as_a_copy_of_the_model_needs(
    parallelism: dict[str, Any], nproc: int, workers: int
) -> None:
    assert workers_per_group(spec(parallelism, nprocPerNode=nproc)) == workers


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"limits": {"nvidia.com/gpu": 4}}},
        {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 4}}}
                    ]
                }
            },
        },
    ],
)
def test_auto_counts_gpus_wherever_their_limit_is(fields: dict[str, Any]) -> None:
    assert workers_per_group(spec({"tensorParallel": 4}, **fields)) == 1


def test_the_field_may_repeat_what_follows() -> None:
    elastic = {"minReplicas": 4, "maxReplicas": 8, "replicaGroupSize": 4}
    assert workers_per_group(spec(FIELDS, elasticPolicy=elastic)) == 4


def test_the_field_decides_where_there_is_no_parallelism_to_follow_from() -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 4, "replicaGroupSize": 2}
    script = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    found = parse_spec(make_spec(replicas=4, elasticPolicy=elastic, trainer=None, template=script))
    assert workers_per_group(found) == 2


def test_torchrun_knows_no_groups() -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 4, "replicaGroupSize": 2}
    script = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    fields = make_spec(
        replicas=4, elasticPolicy=elastic, trainer=None, template=script, launcher="torchrun"
    )
    assert any(
        "spec.elasticPolicy.replicaGroupSize=2" in sentence
        for sentence in unsupported(parse_spec(fields))
    )


@pytest.mark.parametrize(
    ("parallelism", "fields", "words"),
    [
        (
            FIELDS,
            {"elasticPolicy": {"minReplicas": 8, "maxReplicas": 8, "replicaGroupSize": 2}},
            "2 differs from 4",
        ),
        (
            FIELDS,
            {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}},
            "minReplicas 2 must be multiples of",
        ),
        (
            {"tensorParallel": 4},
            {"nprocPerNode": 3},
            "nprocPerNode 3 does not go into a replica group of 4 ranks",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_value(
    parallelism: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        spec(parallelism, **fields)
