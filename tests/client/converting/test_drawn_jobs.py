"""Drawn jobs of others: each is converted without a lost value, or refused with the name of a
field, whatever it holds.
"""

from __future__ import annotations

import copy
from datetime import date
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regroup.converting.conversion import convert_documents
from regroup.converting.draft import ConvertOptions
from regroup.converting.job_yaml import job_yaml
from regroup.converting.source import leaves, shown, value_at
from tests.support.foreign_jobs import (
    PYTORCH_JOB,
    RAY_JOB,
    RUNTIME,
    TRAIN_JOB,
    lost,
    marked,
    problems,
)
from tests.support.kube_api import Json

FILES = {"PyTorchJob": [PYTORCH_JOB], "TrainJob": [TRAIN_JOB, RUNTIME], "RayJob": [RAY_JOB]}
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 5, 2**31, 2**70, 1.5, "", "auto", "2", "cpu", "mark90001", "a b",
    "Never", "$(X)", "${X:-mark90002}", "\ud800", "\x00", "'", '"', "a\nb", "名", [], {}, [[]],
    [None], [{}], {"a": None}, {"mark90003": "mark90004"}, [{"name": "mark90005"}],
    {5: "mark90006"},
    date(2026, 1, 1), ["torchrun", "--nnodes=1:9", "mark90007.py"], ["sh", "-c", "cd /a && x=1 y"],
    ["accelerate", "launch", "--num_processes=6", "--num_machines=3", "train.py"],
    ["python", "-m", "torch.distributed.launch", "--use_env", "x.py"], "train.py", 39999,
)  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
@example(1614, 1)  # a sum with an enormous number of replicas
def test_a_drawn_job_is_converted_or_refused_by_name(kind: str, seed: int, changes: int) -> None:
    random = Random(seed)
    documents = [marked(text) for text in FILES[kind]]
    documents[0]["spec"].pop("runtimeEnvYAML", None)  # values in a text have places of their own
    for _ in range(changes):
        _change(random, random.choice(documents))
    before = copy.deepcopy(documents)
    for conversion in convert_documents(documents, ConvertOptions()):
        refusal = conversion.refusal
        if refusal is not None:
            assert refusal.text and (refusal.place or refusal.document)
        elif conversion.job is not None:
            assert all(problem.startswith(("spec", "metadata")) for problem in problems(conversion))
            assert yaml.safe_load(job_yaml(conversion.job, ["x"]))["kind"] == "TrainingJob"
            lost_ones = [
                shown(place)
                for number, document in enumerate(documents)
                for place in lost(document, conversion, number)
            ]
            assert lost_ones == []
    assert documents == before


def _change(random: Random, document: Json) -> None:
    """Replace, remove or add a value somewhere below spec or metadata."""
    places = [place for place, _ in leaves(document)]
    place = random.choice(places)
    place = place[: max(1, len(place) - random.choice((0, 0, 0, 1, 1, 2, 3)))]
    owner = value_at(document, place[:-1])
    action = random.random()
    if action < 0.6:
        owner[place[-1]] = copy.deepcopy(random.choice(JUNK))
    elif action < 0.8:
        del owner[place[-1]]
    elif isinstance(owner, dict):
        owner[random.choice(("mark90008", 7, "image", "name", "replicas"))] = copy.deepcopy(
            random.choice(JUNK)
        )
