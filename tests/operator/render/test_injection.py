"""The agent in a user's own image, as far as the pod is concerned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.render import injection, torchrun_workload, workload
from tests.support.rendering import SETTINGS, main_of, make_valid_job, make_worker, values_of

OWN = {
    "spec": {
        "containers": [
            {"name": "trainer", "image": "my/image:1", "command": ["python3", "train.py"]}
        ]
    }
}


def injectors(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in pod["spec"].get("initContainers", []) if c["name"] == "regroup-agent"]


def test_the_operators_own_image_has_the_agent() -> None:
    worker = make_worker()
    assert injectors(worker) == []
    assert main_of(worker)["command"] == ["python", "-P", "-m", "regroup_trainer.agent"]
    assert "REGROUP_START" not in values_of(main_of(worker))


@pytest.mark.parametrize("fields", [{"template": OWN, "trainer": None}, {"image": "my/image:1"}])
def test_an_image_of_ones_own_gets_it_from_the_operators_image(fields: dict[str, Any]) -> None:
    worker = make_worker(**fields)
    main = main_of(worker)
    (injector,) = injectors(worker)
    assert main["image"] == "my/image:1"
    assert injector["image"] == "operator:1"
    assert main["command"][1:] == [injection.START, "regroup_trainer.agent"]
    assert values_of(main)["REGROUP_START"] == injection.START
    (volume,) = injector["volumeMounts"]
    assert volume in main["volumeMounts"]
    assert {"name": volume["name"], "emptyDir": {}} in worker["spec"]["volumes"]


def test_the_agent_runs_under_the_python_that_the_command_names() -> None:
    assert main_of(make_worker(template=OWN, trainer=None))["command"][0] == "python3"


def test_what_is_injected_is_restricted_and_comes_before_ones_own_init_containers() -> None:
    own = {"spec": {**OWN["spec"], "initContainers": [{"name": "data", "image": "my/data:1"}]}}
    worker = make_worker(template=own, trainer=None)
    assert [c["name"] for c in worker["spec"]["initContainers"]] == ["regroup-agent", "data"]
    (injector,) = injectors(worker)
    assert injector["securityContext"]["readOnlyRootFilesystem"] is True
    assert injector["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("fields", [{}, {"image": "my/image:1"}])
def test_an_init_container_without_an_image_has_that_of_the_workers(fields: dict[str, Any]) -> None:
    template = {"spec": {"initContainers": [{"name": "packages"}, {"name": "data", "image": "d"}]}}
    worker = make_worker(template=template, **fields)
    images = {c["name"]: c["image"] for c in worker["spec"]["initContainers"]}
    assert (images["packages"], images["data"]) == (main_of(worker)["image"], "d")
    assert "image" not in template["spec"]["initContainers"][0]


def test_a_worker_shows_what_its_init_containers_wrote_last_unless_the_template_says_else() -> None:
    silent = {"name": "data", "image": "d", "terminationMessagePolicy": "File"}
    template = {"spec": {"initContainers": [{"name": "packages"}, silent]}}
    worker = make_worker(template=template, image="my/image:1")
    policies = {c["name"]: c["terminationMessagePolicy"] for c in worker["spec"]["initContainers"]}
    logs = "FallbackToLogsOnError"
    assert policies == {"regroup-agent": logs, "packages": logs, "data": "File"}


@pytest.mark.parametrize("fields", [{"template": OWN, "trainer": None}, {"image": "my/image:1"}])
def test_only_our_own_image_has_a_root_that_cannot_be_written(fields: dict[str, Any]) -> None:
    assert main_of(make_worker(**fields))["securityContext"]["readOnlyRootFilesystem"] is False
    assert main_of(make_worker())["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_replacement_gets_the_agent_of_the_release_that_the_job_was_started_with() -> None:
    job = make_valid_job(image="my/image:1")
    status = job.status.model_copy(
        update={"images": {"trainer": "my/image:1", "coordinator": "operator:0"}}
    )
    started = replace(job, status=status)
    (injector,) = injectors(workload.worker_pod(started, SETTINGS, (0, 2), "198.19.0.1", ()))
    assert injector["image"] == "operator:0"


def test_stock_torchrun_needs_no_agent_of_ours() -> None:
    job = make_valid_job(launcher="torchrun", template=OWN, trainer=None)
    pod = torchrun_workload.agent_pod(job, SETTINGS, (0, 1), "198.19.0.1", ())
    assert injectors(pod) == []
