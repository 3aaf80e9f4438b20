"""A user's mistake is named, by the API server or in the status, and loses nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import Job, make_job, refusal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = pytest.mark.cluster


def test_a_misspelt_trainer_field_is_named_with_the_nearest_one(installation: Installation) -> None:
    manifest = make_job("misspelt")
    manifest["spec"]["trainer"]["training"]["sequenceLenght"] = 64
    job = installation.start(manifest)
    message = job.wait_for_condition("Ready", "False")["message"]
    assert "spec.trainer.training.sequenceLenght" in message
    assert "sequenceLength" in message
    assert job.pods() == []


def test_a_field_that_no_code_honours_is_refused_and_not_ignored(
    installation: Installation,
) -> None:
    job = installation.start(make_job("deadline", startupDeadlineSeconds=60))
    assert "not supported yet" in job.wait_for_condition("Ready", "False")["message"]
    assert job.pods() == []


def test_an_image_that_does_not_exist_is_named(installation: Installation) -> None:
    job = installation.start(make_job("no-image", image="localhost/there-is-no-such:image"))
    wait_until(
        "the image to be named",
        lambda: "there-is-no-such" in job.status().get("message", ""),
        seconds=90,
    )


def test_a_missing_claim_is_named_and_the_job_starts_when_it_comes(
    installation: Installation,
) -> None:
    manifest = make_job("no-claim", steps=20, replicas=1)
    manifest["spec"]["checkpoint"]["storage"] = {"persistentVolumeClaim": {"claimName": "later"}}
    job = installation.start(manifest)
    wait_until(
        "the claim to be named", lambda: "later" in job.status().get("message", ""), seconds=60
    )
    installation.claim("later", job.namespace)
    job.wait_for_condition("Complete", seconds=180)


@pytest.mark.long
def test_a_running_job_refuses_edits_of_what_is_fixed_and_takes_the_rest(
    installation: Installation,
) -> None:
    job = installation.start(make_job("edited", steps=600))
    job.wait_for_checkpoint()
    message = refusal(lambda: job.patch(trainer={"training": {"seed": 7}}))
    assert "suspend" in message.lower()
    job.patch(trainer={"training": {"steps": 620}})
    job.wait_for_condition("Complete", seconds=240)
    assert job.status()["progress"]["step"] == 620
    assert job.status()["goodput"]["lostSteps"] == 0


@pytest.mark.long
def test_an_invalid_edit_of_a_running_job_neither_stops_nor_fails_it(
    installation: Installation,
) -> None:
    job = installation.start(make_job("bad-edit", steps=800))
    job.wait_for_checkpoint()
    job.patch(startupDeadlineSeconds=60)
    assert "not supported yet" in job.wait_for_condition("Ready", "False")["message"]
    job.patch(startupDeadlineSeconds=None)
    job.wait_for_condition("Complete", seconds=240)


def test_the_api_server_refuses_bounds_that_contradict_each_other(
    installation: Installation,
) -> None:
    manifest = copy.deepcopy(make_job("bounds"))
    manifest["spec"]["elasticPolicy"] = {"minReplicas": 4, "maxReplicas": 2}
    message = refusal(lambda: Job.apply(installation.kubectl, installation.namespace, manifest))
    assert "minReplicas" in message


@pytest.mark.long
def test_a_full_volume_fails_the_save_and_not_the_training(installation: Installation) -> None:
    claim = installation.small_volume("tiny-volume", mebibytes=1)
    manifest = make_job("disk-full", steps=120, replicas=1)
    manifest["spec"]["checkpoint"] = {
        "intervalSteps": 20,
        "storage": {"persistentVolumeClaim": {"claimName": claim}},
        "terminationGraceSeconds": 10,  # the deleted job tries to save until then
    }
    manifest["spec"]["trainer"]["model"] = {"name": "gpt", "preset": "1m"}
    job = installation.start(manifest)
    wait_until(
        "the failed save to be reported",
        lambda: job.condition("Checkpointed").get("reason") == "SaveFailed",
        120,
    )
    assert "free" in job.condition("Checkpointed")["message"]
    wait_until("training to go on to the end", lambda: job.step() == 120, seconds=120)
    assert job.status()["restarts"]["application"] == 0
    assert job.condition("Complete")["status"] == "False", "the result is not saved yet"
