"""The jobs that flags of `submit` describe."""

from __future__ import annotations

import pytest

from regroup.kubernetes.submission import JobFlags, job_of_flags


def test_a_job_of_the_built_in_trainer() -> None:
    flags = JobFlags(
        "gpt",
        model="gpt:1m",
        strategy="fsdp",
        steps=500,
        replicas=3,
        min_replicas=2,
        claim="shared",
    )
    assert job_of_flags(flags)["spec"] == {
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
        "trainer": {
            "model": {"name": "gpt", "preset": "1m"},
            "parallelism": {"strategy": "fsdp"},
            "training": {"steps": 500},
        },
    }


def test_a_job_of_a_script() -> None:
    job = job_of_flags(JobFlags("mine", image="x:1", gpus=8, command=("python", "train.py")))
    assert job["metadata"] == {"name": "mine"}
    assert job["spec"] == {
        "image": "x:1",
        "resources": {"limits": {"nvidia.com/gpu": 8}},
        "template": {
            "spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}
        },
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (JobFlags("a"), "say what to train"),
        (JobFlags("a", model="gpt:1m", command=("x",)), "say what to train"),
        (JobFlags("a", steps=3, command=("x",)), "--steps and --strategy belong to --model"),
    ],
)
def test_flags_that_do_not_go_together(flags: JobFlags, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        job_of_flags(flags)
