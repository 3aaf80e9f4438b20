"""What a spec asks for is rendered and judged before anything of it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.observe.observed import Job
from regroup_operator.render.pod_check import find_problem, invalid
from tests.support.operator_simulation import SCRIPT, make_torchrun_spec
from tests.support.rendering import SETTINGS, job_of, make_valid_job

MAIN = "spec.template.spec.containers[trainer]"


def trainer(**fields: Any) -> dict[str, Any]:
    """A template of the main container alone."""
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def own_script(command: list[str], **fields: Any) -> Job:
    return make_valid_job(template=trainer(command=command), trainer=None, **fields)


MISSING_VOLUME = trainer(volumeMounts=[{"name": "data", "mountPath": "/data"}])
SAME_NAME = {"spec": {"initContainers": [{"name": "trainer", "image": "i"}]}}
TWO_KINDS = {"spec": {"volumes": [{"name": "scratch", "configMap": {"name": "c"}}]}}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            make_valid_job(resources={"limits": {"cpu": "banana"}}),
            "spec.resources.limits[cpu]: must be an amount such as 2, 500m or 16Gi, got 'banana'",
        ),
        (
            own_script(["python", "train.py", "x" * 5000]),
            f"{MAIN}.command: String should have at most 4096 characters, got 'xxx",
        ),
        (
            own_script(["python", "train.py", *["x" * 4000] * 40]),
            "spec: the coordinator's configuration has 16",
        ),
        (make_valid_job(template=MISSING_VOLUME), "volumeMounts: there is no volume 'data'"),
        (make_valid_job(template=SAME_NAME), "spec.containers: 'trainer' is there twice"),
        (make_valid_job(template=TWO_KINDS), "is configMap and emptyDir at once"),
        (
            make_valid_job(template={"spec": {"containers": [{"name": "sidecar"}]}}),
            "containers[sidecar].image: is missing",
        ),
        (
            make_valid_job(scheduling={"priorityClassName": "High Priority"}),
            "priorityClassName: must have lower-case letters",
        ),
        (
            make_valid_job(
                checkpoint={
                    "storage": {
                        "volumeClaimTemplate": {
                            "spec": {"resources": {"requests": {"storage": "much"}}}
                        }
                    }
                }
            ),
            "volumeClaimTemplate.spec.resources.requests[storage]: must be an amount",
        ),
        (
            make_valid_job(
                nprocPerNode="auto",
                template=trainer(resources={"limits": {"nvidia.com/gpu": "1e1"}}),
            ),
            "nvidia.com/gpu='1e1' must be a whole number",
        ),
        (
            job_of(make_torchrun_spec(resources={"requests": {"cpu": "banana"}}), {}),
            "spec.resources.requests[cpu]",
        ),
    ],
)
def test_what_kubernetes_or_the_coordinator_would_refuse_is_found_first(
    job: Job, message: str
) -> None:
    assert message in find_problem(job, SETTINGS)


@pytest.mark.parametrize(
    "job",
    [
        make_valid_job(),
        make_valid_job(template=trainer(image="mine:1", env=[{"name": "A", "value": "b"}])),
        job_of(make_torchrun_spec(), {}),
        job_of(make_torchrun_spec(template=SCRIPT), {}),
    ],
)
def test_an_ordinary_job_has_no_problem(job: Job) -> None:
    assert find_problem(job, SETTINGS) == ""


def test_pickled_code_of_another_python_is_refused_before_there_are_pods() -> None:
    known = SETTINGS.model_copy(update={"trainer_python": "3.13"})
    needs = replace(make_valid_job(), python="3.12")
    problem = find_problem(needs, known)
    assert problem.startswith("spec.image: is absent, and the installation's image has Python 3.13")
    assert "was pickled by Python 3.12: call train() from Python 3.13, name an image" in problem
    started = needs.status.model_copy(update={"images": {"trainer": "trainer:0"}})
    for fitting in (
        find_problem(needs, SETTINGS),
        find_problem(replace(needs, python="3.13"), known),
        find_problem(replace(needs, python=""), known),
        find_problem(replace(make_valid_job(image="mine"), python="3.12"), known),
        find_problem(
            replace(make_valid_job(template=trainer(image="mine:1")), python="3.12"), known
        ),
        find_problem(replace(needs, status=started), known),
    ):
        assert fitting == ""


def test_a_job_with_a_problem_keeps_all_that_is_known_of_it() -> None:
    job = make_valid_job()
    refused = invalid(job, "spec.x: wrong")
    assert refused.key == job.key
    assert refused.status is job.status
    assert refused.problem.message == "spec.x: wrong"
