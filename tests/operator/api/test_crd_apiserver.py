"""The generated definition on a real API server: what it accepts, what it refuses, what may change
when.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regroup_operator.api.crd import FIXED, FIXED_UNLESS_SUSPENDED, FIXED_WHILE_RESUMING
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.spec_reader import parse_spec
from regroup_operator.api.support import unsupported
from regroup_trainer.protocol.config import TrainingConfig
from tests.support.kube_api import ROOT, Json, Namespace
from tests.support.specs import SAMPLE_JOBS, SMALLEST, put

pytestmark = pytest.mark.apiserver

SUSPENDED = {
    "conditions": [
        {
            "type": "Suspended",
            "status": "True",
            "reason": "T",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
}

VALUES: dict[str, tuple[Any, Any]] = {
    "nprocPerNode": ("auto", 2),
    "image": ("a:1", "a:2"),
    "resources": ({"limits": {"cpu": "1"}}, {"limits": {"cpu": 2}}),
    "progressPattern": (r"(?P<step>\d+)", r"step (?P<step>\d+)"),
    "template": ({"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"a": "2"}}}),
    "trainer.model": ({"name": "gpt", "preset": "1m"}, {"name": "gpt", "preset": "tiny"}),
    "trainer.data": ({"paths": ["/a"]}, {"paths": ["/b"]}),
    "trainer.parallelism": ({"strategy": "ddp"}, {"strategy": "fsdp"}),
    "trainer.optimizer": ({"learningRate": 0.1}, {"learningRate": 0.2}),
    "trainer.evaluation": ({"everySteps": 1}, {"everySteps": 2}),
    "trainer.training.globalBatchSize": (24, 48),
    "trainer.training.microBatchSize": (8, 4),
    "trainer.training.sequenceLength": (128, 64),
    "trainer.training.gradientClip": (1.0, 0.5),
    "trainer.training.precision": ("fp32", "bf16"),
    "trainer.training.compile": (True, False),
    "trainer.training.activationCheckpointing": ("none", "full"),
    "trainer.training.seed": (0, 1),
    "trainer.training.deterministic": ("rounding", "exact"),
    "checkpoint.storage": ({"persistentVolumeClaim": {"claimName": "a"}}, {"emptyDir": {}}),
    "checkpoint.onTermination": ("Save", "Skip"),
    "checkpoint.terminationGraceSeconds": (120, 60),
    "resume": ({"policy": "Never"}, {"policy": "Step", "step": 5}),
    "cleanPodPolicy": ("Running", "All"),
    "scheduling": ({"priorityClassName": "a"}, {"priorityClassName": "b"}),
}
"""Each field that only changes while suspended -> two valid values."""

FREE: dict[str, tuple[Any, Any]] = {
    "spares": (0, 1),
    "networkPolicy": ("Isolated", "None"),
    "replicas": (3, 2),
    "elasticPolicy": ({"minReplicas": 2, "maxReplicas": 4}, {"minReplicas": 1, "maxReplicas": 8}),
    "failureDetection": ({"timeoutMilliseconds": 2000}, {"timeoutMilliseconds": 3000}),
    "restartPolicy": ({"maxRestarts": 1}, {"maxRestarts": 2}),
    "failurePolicy": ({"rules": []}, {"rules": [{"name": "a", "action": "FailJob"}]}),
    "nodeFailurePolicy": ({"notReadySeconds": 5}, {"notReadySeconds": 6}),
    "metrics": ({"rankDetail": "auto"}, {"rankDetail": "full"}),
    "suspend": (False, True),
    "checkpoint.intervalSteps": (10, 20),
    "checkpoint.keepLast": (3, 4),
    "checkpoint.memorySnapshotSteps": (10, 0),
    "checkpoint.keepEverySteps": (100, 200),
    "trainer.training.steps": (600, 700),
    "trainer.training.nonFinite": ("skip", "stop"),
    "ttlSecondsAfterFinished": (1, 2),
    "activeDeadlineSeconds": (100, 200),
    "startupDeadlineSeconds": (100, 200),
}
"""Each field that may change at any time -> two valid values, the second allowed after the first.
"""


def without_resuming(spec: Json) -> Json:
    """Data-dependent fields are held by a second rule unless the policy is Never."""
    return put(spec, "resume.policy", "Never")


def test_every_field_of_the_spec_is_in_a_table_of_when_it_changes() -> None:
    """Every field stands in a table of when it may change; the three tables together have every
    top-level field.
    """
    known = {path.split(".")[0] for path in (*VALUES, *FREE, *FIXED)}
    assert {field.alias for field in TrainingJobSpec.model_fields.values()} == known
    assert set(VALUES) == set(FIXED_UNLESS_SUSPENDED)
    training = {str(field.alias) for field in TrainingConfig.model_fields.values()}
    assert {path.rsplit(".", 1)[1] for path in (*VALUES, *FREE) if ".training." in path} == training


def test_the_smallest_job_is_accepted_as_printed(namespace: Namespace) -> None:
    answer = namespace.create(SMALLEST)
    assert answer.status == 201, answer.message
    assert answer.body["spec"] == SMALLEST, "the API server adds no defaults to it"


@pytest.mark.parametrize("sample", SAMPLE_JOBS, ids=lambda path: path.name)
def test_every_sample_is_accepted_and_honoured_in_full(namespace: Namespace, sample: Path) -> None:
    spec = yaml.safe_load(sample.read_text())["spec"]
    answer = namespace.create(spec)
    assert answer.status == 201, answer.message
    assert unsupported(parse_spec(answer.body["spec"])) == []


def test_replicas_default_to_one_so_that_scale_works(namespace: Namespace) -> None:
    answer = namespace.create({"trainer": {}})
    assert answer.body["spec"]["replicas"] == 1
    scale = namespace.api.request("GET", namespace.jobs("gpt") + "/scale")
    assert scale.body["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"replicas": 0}, "spec.replicas"),
        ({"replicas": "three"}, "spec.replicas"),
        ({"replicas": 5}, "spec.replicas must not be above spec.elasticPolicy.maxReplicas"),
        ({"replicas": 1}, "spec.replicas must not be below spec.elasticPolicy.minReplicas"),
        ({"elasticPolicy": {"minReplicas": 4, "maxReplicas": 2}}, "minReplicas must not be above"),
        ({"checkpoint": {}}, "spec.checkpoint.storage is needed"),
        ({"checkpoint": {"storage": {}}}, "give exactly one of"),
        (
            {
                "checkpoint": {
                    "storage": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "a"}}
                }
            },
            "exactly one",
        ),
        (
            {"checkpoint": {"storage": {"emptyDir": {}}, "intervalSteps": 1, "intervalSeconds": 1}},
            "not both",
        ),
        (
            {"checkpoint": {"storage": {"emptyDir": {}}, "retentionPolicy": "Delete"}},
            "volumeClaimTemplate",
        ),
        ({"resume": {"policy": "Step"}}, "policy Step and the field step"),
        ({"resume": {"step": 3}}, "policy Step and the field step"),
        ({"resume": {"policy": "Job"}}, "policy Job and the field jobName"),
        ({"nprocPerNode": "many"}, "spec.nprocPerNode"),
        ({"nprocPerNode": 0}, "spec.nprocPerNode"),
        ({"launcher": "mpirun"}, "spec.launcher"),
        ({"trainer": {"training": {"steps": "many"}}}, "spec.trainer.training.steps"),
        ({"trainer": {"model": {"name": "bert"}}}, "spec.trainer.model.name"),
        ({"trainer": {"optimizer": {"learningRate": 0}}}, "spec.trainer.optimizer.learningRate"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    namespace: Namespace, change: Json, complaint: str
) -> None:
    answer = namespace.create({**SMALLEST, **change})
    assert answer.status == 422
    assert complaint in answer.message


@pytest.mark.parametrize("name", ["Gpt", "1gpt", "g.p", "gpt-", "g" * 51])
def test_a_name_that_no_pod_could_carry_is_refused(namespace: Namespace, name: str) -> None:
    answer = namespace.create(SMALLEST, name)
    assert answer.status == 422
    assert "name" in answer.message


def test_a_misspelt_field_of_the_trainer_survives_to_be_refused_by_name(
    namespace: Namespace,
) -> None:
    spec = put(SMALLEST, "trainer.training.stepz", 7)
    answer = namespace.create(spec)
    assert answer.status == 201
    assert answer.body["spec"]["trainer"]["training"]["stepz"] == 7


def test_the_pod_template_is_kept_as_it_is(namespace: Namespace) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}}
    assert namespace.create({**SMALLEST, "template": template}).body["spec"]["template"] == template


@pytest.mark.parametrize("path", VALUES)
def test_a_guarded_field_is_neither_added_changed_nor_removed_while_running(
    namespace: Namespace, path: str
) -> None:
    first, second = VALUES[path]
    base = SMALLEST if path in ("resume", "checkpoint.storage") else without_resuming(SMALLEST)
    absent, present, other = (put(base, path, value) for value in (None, first, second))
    if path == "checkpoint.storage":
        absent, present, other = (
            put(spec, "elasticPolicy", None) for spec in (absent, present, other)
        )
    assert namespace.create(present, "present").status == 201
    assert namespace.create(absent, "absent").status == 201
    for name, spec in (("present", other), ("present", absent), ("absent", present)):
        answer = namespace.replace_spec(spec, name)
        assert answer.status == 422, f"{name}: {path} was let through"
        assert f"spec.{path}" in answer.message
        at_once = namespace.replace_spec({**spec, "suspend": True}, name)
        assert at_once.status == 422, "one request may not suspend and change"
    for name in ("present", "absent"):
        assert namespace.write_status(SUSPENDED, name).status == 200
    for name, spec in (("present", other), ("present", absent), ("absent", present)):
        answer = namespace.replace_spec(spec, name)
        assert answer.status == 200, answer.message


@pytest.mark.parametrize("path", FREE)
def test_a_free_field_is_added_changed_and_removed_while_running(
    namespace: Namespace, path: str
) -> None:
    first, second = FREE[path]
    present, other = put(SMALLEST, path, first), put(SMALLEST, path, second)
    assert namespace.create(present, "present").status == 201
    assert namespace.replace_spec(other, "present").status == 200
    if path not in ("replicas", "elasticPolicy", "trainer.training.steps"):
        absent = put(SMALLEST, path, None)
        assert namespace.replace_spec(absent, "present").status == 200
        assert namespace.create(absent, "absent").status == 201
        assert namespace.replace_spec(present, "absent").status == 200


def test_steps_only_grow_while_running(namespace: Namespace) -> None:
    namespace.create(SMALLEST)
    assert namespace.replace_spec(put(SMALLEST, "trainer.training.steps", 501)).status == 200
    answer = namespace.replace_spec(put(SMALLEST, "trainer.training.steps", 499))
    assert answer.status == 422
    assert "spec.trainer.training.steps only grows" in answer.message


@pytest.mark.parametrize("path", FIXED)
def test_some_fields_never_change_not_even_while_suspended(namespace: Namespace, path: str) -> None:
    first, second = {
        "launcher": ("regroup", "torchrun"),
        "managedBy": ("regroup.dev/operator", "other"),
    }[path]
    namespace.create(put(SMALLEST, path, first))
    namespace.write_status(SUSPENDED)
    answer = namespace.replace_spec(put(SMALLEST, path, second))
    assert answer.status == 422
    assert f"spec.{path} never changes" in answer.message


@pytest.mark.parametrize("path", FIXED_WHILE_RESUMING)
def test_what_checkpoints_depend_on_only_changes_without_resuming(
    namespace: Namespace, path: str
) -> None:
    first, second = VALUES[path]
    namespace.create(put(SMALLEST, path, first))
    namespace.write_status(SUSPENDED)
    changed = put(SMALLEST, path, second)
    answer = namespace.replace_spec(changed)
    assert answer.status == 422
    assert f"spec.{path} stays as it is" in answer.message
    assert namespace.replace_spec(without_resuming(changed)).status == 200


def test_the_trainer_section_only_comes_and_goes_while_suspended(namespace: Namespace) -> None:
    namespace.create({"trainer": {}})
    assert namespace.replace_spec({"replicas": 1}).status == 422
    namespace.write_status(SUSPENDED)
    assert namespace.replace_spec({"replicas": 1}).status == 200


def test_scaling_moves_replicas_within_the_bounds_and_reads_the_status(
    namespace: Namespace,
) -> None:
    namespace.create(SMALLEST)
    namespace.write_status({"replicas": 3, "selector": "regroup.dev/job=gpt"})
    path = namespace.jobs("gpt") + "/scale"
    scale = namespace.api.request("GET", path).body
    assert scale["status"] == {"replicas": 3, "selector": "regroup.dev/job=gpt"}
    assert namespace.api.request("PUT", path, {**scale, "spec": {"replicas": 4}}).status == 200
    assert namespace.read()["spec"]["replicas"] == 4
    scale = namespace.api.request("GET", path).body
    answer = namespace.api.request("PUT", path, {**scale, "spec": {"replicas": 5}})
    assert answer.status == 422
    assert "maxReplicas" in answer.message


def test_writing_the_status_leaves_the_spec_alone_and_the_other_way_round(
    namespace: Namespace,
) -> None:
    namespace.create(SMALLEST)
    document = namespace.read()
    document["spec"]["replicas"] = 4
    namespace.api.request(
        "PUT", namespace.jobs("gpt") + "/status", {**document, "status": {"phase": "Running"}}
    )
    after = namespace.read()
    assert after["spec"]["replicas"] == 3
    assert after["status"]["phase"] == "Running"
    namespace.replace_spec({**SMALLEST, "replicas": 4}, dry_run=False)
    assert namespace.read()["status"]["phase"] == "Running"


def test_an_unknown_phase_is_refused(namespace: Namespace) -> None:
    namespace.create(SMALLEST)
    assert namespace.write_status({"phase": "Dreaming"}).status == 422


def test_the_table_of_kubectl_get_shows_the_state(namespace: Namespace) -> None:
    columns = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())["spec"]["versions"][0][
        "additionalPrinterColumns"
    ]
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Phase", "Workers", "Step", "Progress", "Ckpt", "Restarts", "Goodput", "Age",
    ]  # fmt: skip


def test_the_wide_table_also_shows_ranks_generation_and_message(namespace: Namespace) -> None:
    namespace.create(SMALLEST)
    status = {"worldSize": 6, "rendezvousGeneration": "2.3", "message": "training: step 7"}
    namespace.write_status({**status, "progress": {"remainingSeconds": 90}})
    wide = {c["name"]: c["value"] for c in namespace.printed() if c["priority"] == 1}
    assert wide == {
        "Ranks": 6,
        "Generation": "2.3",
        "Remaining": 90,
        "Message": "training: step 7",
    }
