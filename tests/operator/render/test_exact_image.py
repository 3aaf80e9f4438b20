"""Which digest a kubelet reports for an image, and which pods then run it."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.exact_image import as_recorded, with_digest
from tests.support.operator_simulation import make_spec, make_torchrun_spec
from tests.support.rendering import SETTINGS, job_of, main_of

DIGEST = f"sha256:{'0af5' * 16}"
OTHER = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("image", "image_id", "exact"),
    [
        ("python", f"docker.io/library/python@{DIGEST}", "python"),
        ("python:3.13", f"python@{DIGEST}", "python"),
        ("me/it:v1", f"docker.io/me/it@{DIGEST}", "me/it"),
        ("index.docker.io/me/it", f"docker.io/me/it@{DIGEST}", "index.docker.io/me/it"),
        ("docker.io/python", f"docker.io/library/python@{DIGEST}", "docker.io/python"),
        ("host:5000/it", f"host:5000/it@{DIGEST}", "host:5000/it"),
        ("host:5000/it:v1", f"host:5000/it@{DIGEST}", "host:5000/it"),
        ("localhost/it:v1", f"localhost/it@{DIGEST}", "localhost/it"),
        ("a.b/c/d:v1", f"docker-pullable://a.b/c/d@{DIGEST}", "a.b/c/d"),
    ],
)
def test_an_image_of_a_registry_is_known_by_its_digest(
    image: str, image_id: str, exact: str
) -> None:
    assert with_digest(image, image_id) == f"{exact}@{DIGEST}"


@pytest.mark.parametrize(
    ("image", "image_id"),
    [
        ("me/it:v1", ""),
        ("me/it:v1", DIGEST),
        ("me/it:v1", f"docker.io/library/import-2026-01-01@{DIGEST}"),
        ("me/it:v1", f"ghcr.io/me/it@{DIGEST}"),
        ("python", f"docker.io/me/python@{DIGEST}"),
        ("localhost/it", f"docker.io/localhost/it@{DIGEST}"),
        ("me/it:v1", f"me/it@{DIGEST[:-1]}"),
        ("me/it:v1", f"me/it@{DIGEST}0"),
        ("me/it:v1", f"me/it@{DIGEST}\n"),
        ("me/it:v1", f"me/it@sha512:{'0' * 64}"),
        ("me/it:v1", "docker.io/me/it:v1"),
        (f"me/it@{OTHER}", f"docker.io/me/it@{DIGEST}"),
        ("a" * 1000, f"{'a' * 1000}@{DIGEST}"),
    ],
)
def test_what_could_not_be_pulled_or_stored_is_not_taken(image: str, image_id: str) -> None:
    assert with_digest(image, image_id) == image


@pytest.mark.parametrize(
    ("image", "recorded", "run"),
    [
        ("me/it:v1", f"docker.io/me/it@{DIGEST}", f"docker.io/me/it@{DIGEST}"),
        ("me/it:v1", "me/it:v0", "me/it:v1"),
        ("me/it:v1", f"other/it@{DIGEST}", "me/it:v1"),
        (f"me/it@{OTHER}", f"me/it@{DIGEST}", f"me/it@{OTHER}"),
        ("", f"me/it@{DIGEST}", ""),
    ],
)
def test_the_image_of_a_template_is_the_recorded_one_by_digest_alone(
    image: str, recorded: str, run: str
) -> None:
    assert as_recorded(image, recorded) == run


TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [
            {"name": "trainer", "image": "me/it:v1", "command": ["python", "train.py"]},
            {"name": "beside", "image": "me/it:v1"},
        ]
    }
}


def test_workers_with_an_image_of_their_template_run_its_digest_and_others_are_left() -> None:
    job = job_of(
        make_spec(template=TEMPLATE, trainer=None), {"images": {"trainer": f"me/it@{DIGEST}"}}
    )
    worker = workload.worker_pod(job, SETTINGS, (0, 1), "198.19.0.1", ())
    assert main_of(worker)["image"] == f"me/it@{DIGEST}"
    assert [c["image"] for c in worker["spec"]["containers"] if c["name"] == "beside"] == [
        "me/it:v1"
    ]


def test_the_store_of_torchrun_runs_the_image_of_its_workers() -> None:
    job = job_of(make_torchrun_spec(template=TEMPLATE), {"images": {"trainer": f"me/it@{DIGEST}"}})
    store = torchrun_workload.store_pod(job, SETTINGS, 1, ())
    assert store["spec"]["containers"][0]["image"] == f"me/it@{DIGEST}"
