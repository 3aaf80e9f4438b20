"""A worker that is made out of another one is what rendering it would give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regroup_operator.observe.observed import Job
from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.worker_places import at_place
from tests.support.operator_simulation import make_torchrun_spec
from tests.support.rendering import SETTINGS, job_of, make_valid_job

TEMPLATE = {
    "metadata": {"labels": {"team": "nlp"}, "annotations": {"note": "gpt-w0-1"}},
    "spec": {
        "initContainers": [{"name": "first", "image": "a:1", "env": [{"name": "A", "value": "0"}]}],
        "containers": [
            {"name": "sidecar", "image": "b:1", "env": [{"name": "RANK_OF", "value": "0"}]},
            {
                "name": "trainer",
                "image": "user/image:2",
                "env": [
                    {"name": "FIRST", "value": "0"},
                    {"name": "REGROUP_PEAK_TFLOPS", "value": "0"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            },
        ],
    },
}
HYBRID = {"strategy": "hsdp", "shardGroupSize": 2}
RENDERERS = {"regroup": workload.worker_pod, "torchrun": torchrun_workload.agent_pod}


def jobs() -> dict[str, Job]:
    return {
        "plain": make_valid_job(),
        "with a template": make_valid_job(template=TEMPLATE),
        "hybrid": make_valid_job(replicas=4, trainer={"parallelism": HYBRID}),
        "torchrun": job_of(make_torchrun_spec(), {"coordinatorTerm": 3}),
        "torchrun again": job_of(make_torchrun_spec(replicas=2), {"coordinatorTerm": 12}),
    }


@pytest.mark.parametrize("kind", jobs())
@pytest.mark.parametrize("excluded", [(), ("n2", "n1")])
@pytest.mark.parametrize("place", [(0, 1), (1, 1), (12, 345), (4095, 2)])
def test_a_worker_of_another_place_is_as_it_would_be_rendered(
    kind: str, excluded: tuple[str, ...], place: tuple[int, int]
) -> None:
    job = jobs()[kind]

    def render(at: tuple[int, int]) -> dict[str, Any]:
        return RENDERERS[job.launcher](job, SETTINGS, at, "198.19.0.1", excluded)

    first = render((0, 1))
    before = json.dumps(first)
    assert json.dumps(at_place(first, job.name, place)) == json.dumps(render(place))
    assert json.dumps(first) == before, "the other one stays as it is"
