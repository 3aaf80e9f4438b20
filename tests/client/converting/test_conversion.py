"""Every value of a job of others is taken over, or reported with a reason; the tables of the fields
say the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from regroup.converting import object_metadata, pod_template, pytorch_job, ray_job, train_job
from regroup.converting.ray_job import with_runtime_environment
from regroup.converting.source import Place, Row, find, leaves
from regroup_operator.render.workload import worker_pod
from tests.support.foreign_jobs import (
    PYTORCH_JOB,
    RAY_JOB,
    RUNTIME,
    TRAIN_JOB,
    convert_one,
    is_reported,
    lost,
    marked,
    problems,
)
from tests.support.kube_api import Json
from tests.support.rendering import SETTINGS, job_of, main_of, values_of
from tests.support.specs import put

FILES = [[PYTORCH_JOB], [TRAIN_JOB, RUNTIME], [RAY_JOB]]


@pytest.mark.parametrize("files", FILES)
def test_no_value_is_dropped_silently(files: list[str]) -> None:
    documents = [marked(text) for text in files]
    conversion = convert_one(*documents)
    assert conversion.refusal is None, conversion.refusal
    assert problems(conversion) == []
    for number, document in enumerate(documents):
        assert lost(document, conversion, number) == []


def variants(files: Sequence[str], *changes: Mapping[str, object]) -> list[list[Json]]:
    """Documents as they are, and with fields of the first one changed."""
    plain = [marked(text) for text in files]
    return [plain, *([_changed(plain[0], change), *plain[1:]] for change in changes)]


def _changed(document: Json, change: Mapping[str, object]) -> Json:
    for path, value in change.items():
        document = put(document, path, value)
    return document


UNNAMED = {"metadata.name": None, "metadata.generateName": "full-"}
PYTORCH_JOBS = variants(
    [PYTORCH_JOB],
    UNNAMED,
    {"spec.nprocPerNode": None, "spec.elasticPolicy.maxRestarts": None},
)
TRAIN_JOBS = variants([TRAIN_JOB, RUNTIME], UNNAMED, {"spec.trainer": {}})
RAY_JOBS = variants([RAY_JOB], UNNAMED)


@pytest.mark.parametrize(
    ("cases", "rows"),
    [
        (PYTORCH_JOBS, pytorch_job.ROWS),
        (TRAIN_JOBS, train_job.ROWS),
        (RAY_JOBS, ray_job.ROWS),
    ],
)
def test_the_tables_say_what_becomes_of_a_field(
    cases: list[list[Json]], rows: tuple[Row, ...]
) -> None:
    assert untrue(cases, rows, 0, ()) == []


def test_the_table_of_runtimes_says_what_becomes_of_a_field() -> None:
    plain = [*TRAIN_JOBS, [TRAIN_JOBS[2][0], put(TRAIN_JOBS[0][1], "spec.mlPolicy.torch", {})]]
    assert untrue(plain, train_job.RUNTIME_ROWS, 1, ()) == []


def test_the_table_of_pods_says_what_becomes_of_a_field() -> None:
    place = ("spec", "pytorchReplicaSpecs", "Worker", "template")
    assert untrue(PYTORCH_JOBS, pod_template.ROWS, 0, place) == []


def untrue(cases: list[list[Json]], rows: Sequence[Row], number: int, root: Place) -> list[Row]:
    """Rows that say that a field is taken over, and it never is, or the reverse; and rows of which
    no document has a field. `root`: where the fields of the rows begin.
    """
    true = set()
    for documents in cases:
        conversion = convert_one(*documents)
        assert conversion.refusal is None, conversion.refusal
        for place, _ in leaves(with_runtime_environment(documents[number])):
            row = find(rows, place[len(root) :]) if place[: len(root)] == root else None
            if row and is_reported(place, conversion, number) != bool(row.target):
                true.add(row)
    return [row for row in rows if row not in true and not row.text.startswith("refused")]


REFUSED = [
    (number, row.field)
    for number, rows in ((0, ray_job.ROWS), (1, train_job.RUNTIME_ROWS))
    for row in rows
    if row.text.startswith("refused")
]


@pytest.mark.parametrize(("number", "field"), REFUSED)
def test_what_the_tables_call_refused_is_refused_by_name(number: int, field: str) -> None:
    documents = [*(TRAIN_JOBS[0] if number else RAY_JOBS[0])]
    documents[number] = put(documents[number], field, {"a": "b"})
    refusal = convert_one(*documents).refusal
    assert refusal is not None and ".".join(map(str, refusal.place)) == field
    assert refusal.document == number


def test_the_rows_of_metadata_are_in_each_table() -> None:
    for rows in (pytorch_job.ROWS, train_job.ROWS, ray_job.ROWS):
        assert set(object_metadata.ROWS) <= set(rows)


TRAINER = {
    "command": ["torchrun", "train.py"],
    "numNodes": 3,
    "numProcPerNode": 2,
    "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": "3"}},
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "OWN", "value": "1"}],
}
"""What a TrainJob says of its workers. RUNTIME says otherwise of each but OWN."""


def of_trainer(trainer: Json) -> Json:
    """The spec of a TrainJob with such a `spec.trainer` over RUNTIME."""
    job = put(put(marked(TRAIN_JOB), "spec.trainer", trainer), "spec.runtimePatches", None)
    conversion = convert_one(job, marked(RUNTIME))
    assert problems(conversion) == [], conversion.refusal
    spec: Json = (conversion.job or {})["spec"]
    return spec


def test_the_options_of_a_train_job_reach_its_job_and_the_pods_of_its_workers() -> None:
    spec = of_trainer(TRAINER)
    assert (spec["replicas"], spec["nprocPerNode"]) == (3, 2)
    main = main_of(worker_pod(job_of(spec, {"images": {}}), SETTINGS, (0, 1), "198.19.0.1", ()))
    variables = values_of(main)
    assert (variables["NCCL_DEBUG"], variables["OWN"]) == ("WARN", "1")
    limits, requests = main["resources"]["limits"], main["resources"]["requests"]
    # Trainer keeps what only the runtime says.
    assert (limits["nvidia.com/gpu"], limits["memory"], requests["cpu"]) == (2, "16Gi", "3")


def test_what_a_train_job_does_not_say_of_its_workers_is_that_of_its_runtime() -> None:
    spec = of_trainer({"command": ["torchrun", "train.py"]})
    assert (spec["replicas"], spec.get("nprocPerNode", "auto")) == (1, "auto")
    assert spec["resources"] == {
        "limits": {"nvidia.com/gpu": 4, "memory": "16Gi"},
        "requests": {"cpu": "500m"},
    }


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [({"requests": {"cpu": "3"}}, 3), ({"limits": {"cpu": "2500m"}}, 3), ({}, 1)],
)
def test_without_gpus_a_worker_of_a_train_job_has_a_rank_for_each_cpu(
    resources: Json, ranks: int
) -> None:
    trainer = {"command": ["torchrun", "train.py"], "resourcesPerNode": resources}
    job = put(put(marked(TRAIN_JOB), "spec.trainer", trainer), "spec.runtimePatches", None)
    job = put(job, "spec.runtimeRef", {"name": train_job.DEFAULT_NAME})
    assert (convert_one(job).job or {})["spec"]["nprocPerNode"] == ranks


def test_the_code_in_the_command_of_a_train_job_is_a_config_map() -> None:
    trainer = {"command": ["python", "-c"], "args": ["print()", "--lr"]}
    job = put(put(marked(TRAIN_JOB), "spec.trainer", trainer), "metadata.name", "gpt")
    conversion = convert_one(job, marked(RUNTIME))
    assert conversion.config_map is not None
    assert conversion.config_map["data"] == {"main.py": "print()\n"}
    assert problems(conversion) == []


def test_the_runtime_that_is_known_is_like_that_of_a_file() -> None:
    job = marked(TRAIN_JOB)
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", **train_job.DEFAULT_RUNTIME}
    named = put(
        put(job, "spec.runtimeRef.name", train_job.DEFAULT_NAME), "spec.runtimeRef.kind", None
    )
    named = put(named, "spec.runtimePatches", None)
    assert convert_one(named).job == convert_one(named, runtime).job


def test_what_runtimes_of_older_trainers_say_of_torch_is_named() -> None:
    torch = {"numProcPerNode": 4, "elasticPolicy": {"minNodes": 1, "maxNodes": 4}}
    conversion = convert_one(marked(TRAIN_JOB), put(marked(RUNTIME), "spec.mlPolicy.torch", torch))
    assert conversion.job is not None
    (note,) = (note for note in conversion.left_out if "torch" in note.place)
    assert "'numProcPerNode': 4} is left out: only older Trainers have it: set nproc" in note.text


def test_the_name_of_the_job_that_trains_must_be_a_text() -> None:
    runtime = marked(RUNTIME)
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[1]["name"] = [5]
    jobs[1]["template"]["metadata"] = {"labels": {train_job._STEP: "trainer"}}
    refusal = convert_one(marked(TRAIN_JOB), runtime).refusal
    assert refusal is not None and refusal.text == "must be text, got [5]"
