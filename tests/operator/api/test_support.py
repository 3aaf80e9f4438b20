"""What no code honours yet is refused, and the defaults never are."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.api.spec_reader import InvalidSpecError, parse_spec
from regroup_operator.api.support import LIMITS, TORCHRUN_LIMITS, TORCHRUN_POD_LIMITS, unsupported
from tests.support.operator_simulation import make_spec

ASKED_FOR: dict[str, Any] = {
    "elasticPolicy.scaleUpPolicy": "Never",
    "elasticPolicy.scaleUpDelaySeconds": 5,
    "elasticPolicy.minSecondsBetweenResizes": 5,
    "restartPolicy.windowSeconds": 60,
    "failurePolicy.rules": [{"name": "a", "action": "FailJob"}],
    "checkpoint.retentionPolicy": "Delete",
    "resume.policy": "Job",
    "startupDeadlineSeconds": 60,
    "scheduling.queueName": "q",
    "scheduling.topologyKey": "rack",
    "scheduling.exclusive": True,
    "scheduling.gang": "PodGroup",
}


def spec_with(path: str, value: Any) -> dict[str, Any]:
    spec = make_spec(elasticPolicy={"minReplicas": 3, "maxReplicas": 3})
    if path == "resume.policy":
        return {**spec, "resume": {"policy": value, "jobName": "other"}}
    if path == "checkpoint.retentionPolicy":
        claim = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
        return {
            **spec,
            "checkpoint": {"retentionPolicy": value, "storage": {"volumeClaimTemplate": claim}},
        }
    *parents, last = path.split(".")
    section = spec
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return spec


def test_each_row_of_the_table_is_tried() -> None:
    assert set(ASKED_FOR) == {limit.path for limit in LIMITS}


@pytest.mark.parametrize("path", ASKED_FOR)
def test_asking_for_more_is_refused_by_the_name_of_the_field(path: str) -> None:
    found = unsupported(parse_spec(spec_with(path, ASKED_FOR[path])))
    assert len(found) == 1
    assert found[0].startswith(f"not supported yet: spec.{path}=")


def test_a_job_of_defaults_is_honoured_in_full() -> None:
    assert unsupported(parse_spec({"trainer": {}})) == []
    assert unsupported(parse_spec(make_spec())) == []


OWN_SCRIPT = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}


def test_a_script_of_ones_own_is_honoured() -> None:
    assert unsupported(parse_spec({"template": OWN_SCRIPT})) == []
    pattern = r"step (?P<step>\d+)"
    assert unsupported(parse_spec({"template": OWN_SCRIPT, "progressPattern": pattern})) == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (make_spec(template=OWN_SCRIPT), "(train.py) both say what to run: keep one of them"),
        (
            {},
            (
                "trainer: is missing: give `trainer: {}` for the built-in trainer's defaults, or a "
                "script of your own"
            ),
        ),
        (
            {
                "template": {
                    "spec": {"containers": [{"name": "main", "command": ["python", "a.py"]}]}
                }
            },
            "command (a container 'main' has one: name it trainer)",
        ),
    ],
)
def test_a_job_runs_either_the_trainer_or_a_script(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"trainer": {"training": {"stepz": 1}}},
            "spec.trainer.training.stepz: unknown field: did you mean 'steps'?",
        ),
        (
            {"failurePolicy": {"rules": [{"name": "a", "action": "FailJob", "onReason": []}]}},
            "did you mean 'onReasons'?",
        ),
        ({"replicas": 9}, "replicas 9 must lie between"),
        (
            {"progressPattern": r"step (\d+)"},
            "spec.progressPattern: has no group 'step': write (?P<step>\\d+) where",
        ),
        (
            {"progressPattern": r"(?P<step>\d+)"},
            "progressPattern '(?P<step>\\\\d+)' is only for a script of your own",
        ),
        ({"progressPattern": "(?P<step>" + "x" * 300}, "spec.progressPattern: String should have"),
        ({"replicas": "three"}, "spec.replicas"),
        (
            {"failureDetection": {"timeoutMilliseconds": 600}},
            "at least twice heartbeatMilliseconds",
        ),
        ({"trainer": {"model": {"preset": "huge"}}}, "preset 'huge' is unknown"),
        (
            {"elasticPolicy": {"replicaGroupSize": 3}},
            "replicaGroupSize 3 differs from 1, the workers of",
        ),
        (
            {"trainer": {"parallelism": {"tensorParallel": 2}}},
            "replicas 3 and minReplicas 2 must be multiples of the",
        ),
        (
            {"trainer": {"parallelism": {"tensorParallel": 2}}, "nprocPerNode": 3},
            "nprocPerNode 3 does not go into",
        ),
        ({"checkpoint": {"storage": {"emptyDir": {}}}}, "emptyDir: is not shared between workers"),
        (
            {
                "checkpoint": {
                    "storage": {"persistentVolumeClaim": {"claimName": "a", "subPath": "../b"}}
                }
            },
            "'..'",
        ),
    ],
)
def test_a_wrong_spec_is_explained_by_field_and_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(make_spec(**fields))
    assert words in str(caught.value)


TORCHRUN: dict[str, Any] = {
    "metrics.rankDetail": "full",
    "spares": 1,
    "progressPattern": r"step (?P<step>\d+)",
    "failureDetection.progressTimeoutSeconds": 60,
    "failureDetection.stragglerPercent": 50,
    "failureDetection.stragglerAction": "Replace",
    "restartPolicy.maxHangRestarts": 1,
    "failureDetection.heartbeatMilliseconds": 250,
    "failureDetection.timeoutMilliseconds": 5000,
    "checkpoint.intervalSeconds": 60,
    "checkpoint.intervalSteps": 60,
    "checkpoint.keepLast": 1,
    "checkpoint.keepEverySteps": 1000,
    "checkpoint.onTermination": "Skip",
    "checkpoint.memorySnapshotSteps": 5,
    "resume.policy": "Never",
}


def torchrun_spec(**fields: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    return {"launcher": "torchrun", "template": template, **fields}


def test_each_field_without_a_meaning_for_torchrun_is_tried() -> None:
    limits = (*TORCHRUN_LIMITS, *TORCHRUN_POD_LIMITS)
    assert set(TORCHRUN) == {limit.path for limit in limits}
    assert unsupported(parse_spec(torchrun_spec())) == []


@pytest.mark.parametrize("path", TORCHRUN)
def test_torchrun_refuses_what_only_our_own_launcher_can_do(path: str) -> None:
    section, _, field = path.partition(".")
    value = {field: TORCHRUN[path]} if field else TORCHRUN[path]
    found = unsupported(parse_spec(torchrun_spec(**{section: value})))
    assert len(found) == 1
    assert found[0].startswith(f"not possible with launcher torchrun: spec.{path}=")


def test_a_local_run_reads_what_ranks_of_torchrun_write() -> None:
    spec = parse_spec(torchrun_spec(progressPattern=TORCHRUN["progressPattern"]))
    assert unsupported(spec, on_cluster=False) == []


def test_torchrun_needs_a_script_and_takes_no_configuration_of_the_built_in_trainer() -> None:
    found = unsupported(parse_spec({"launcher": "torchrun", "trainer": {}}))
    assert "spec.trainer (the built-in trainer's" in found[0]
    assert "containers[trainer].command is missing" in found[1]
