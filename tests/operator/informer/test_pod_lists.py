"""What lists of the pods of a job keep."""

from __future__ import annotations

import asyncio

import pytest

from regroup_operator.informer.pod_lists import ListTurns, read_for
from tests.support.job_memory import make_pod, make_pod_watch
from tests.support.rendering import make_valid_job


@pytest.mark.parametrize("owners", [[], [{"uid": "another", "controller": True}]])
def test_of_a_pod_that_is_not_the_jobs_only_its_name_and_state_are_kept(
    owners: list[dict[str, object]],
) -> None:
    """Each of thousands of claims takes 60 bytes, and whoever may create pods names them."""
    job = make_valid_job()
    large = make_pod(job, "mallory", ownerReferences=owners)
    claims = [{"persistentVolumeClaim": {"claimName": f"claim{n}"}} for n in range(9_000)]
    large["spec"]["volumes"] = [{"name": f"v{n}", **each} for n, each in enumerate(claims)]
    whole = make_pod_watch().read(large)
    brief = read_for(job.uid, make_pod_watch().read)(large)
    assert whole.value is not None
    assert brief.value is not None
    assert whole.size > 400_000
    assert brief.size <= 512
    assert brief.value.pod.claims == ()
    assert brief.value.owner == whole.value.owner
    assert brief.value.pod.alive == whole.value.pod.alive
    assert brief.value.pod.name == whole.value.pod.name


def test_a_pod_of_the_job_is_read_whole() -> None:
    job = make_valid_job()
    assert read_for(job.uid, make_pod_watch().read)(make_pod(job)) == make_pod_watch().read(
        make_pod(job)
    )


async def test_a_round_that_has_a_place_takes_no_other() -> None:
    turns = ListTurns(places=1)

    async def round_of_a_job() -> None:
        for _ in range(2):
            async with asyncio.timeout(1):
                await turns.take("a")

    for _ in range(2):
        await asyncio.create_task(round_of_a_job())
