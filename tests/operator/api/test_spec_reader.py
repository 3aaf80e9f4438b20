"""How deep and how large a spec may be: what reads and renders it is recursive, and each round of a
job does it.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.api.spec_reader import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    MOST_VALUES,
    InvalidSpecError,
    parse_spec,
)
from regroup_operator.observe import bounded_json
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import InvalidJob
from tests.support.large_specs import KINDS, make_large, with_main, with_pod
from tests.support.least_time import least_cpu_seconds
from tests.support.offline_operator import problem_of
from tests.support.specs import SMALLEST

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def nested(levels: int, kind: str) -> Any:
    """A value of so many objects or lists in one another."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind == "objects" else [value]
    return value


@pytest.mark.parametrize("kind", ["objects", "lists"])
@pytest.mark.parametrize("levels", [MOST_LEVELS - 1, 100, 500, 1_400, 9_000])
def test_a_template_is_refused_by_its_depth_before_anything_recurses(
    levels: int, kind: str
) -> None:
    spec = {**SMALLEST, "template": {"metadata": nested(levels, kind)}}
    with pytest.raises(InvalidSpecError, match=r"spec.template: more than 50 objects and lists"):
        parse_spec(spec)


@pytest.mark.parametrize("kind", ["objects", "lists"])
def test_a_template_that_has_too_many_levels_and_values_is_refused_by_its_values(kind: str) -> None:
    spec = {**SMALLEST, "template": {"metadata": nested(9_999, kind)}}
    with pytest.raises(InvalidSpecError, match=f"^spec: has more than {MOST_VALUES} values"):
        parse_spec(spec)


def test_the_deepest_template_that_is_taken() -> None:
    spec = {**SMALLEST, "template": {"metadata": nested(MOST_LEVELS - 2, "objects")}}
    assert parse_spec(spec).template == copy.deepcopy(spec["template"])


@pytest.mark.parametrize("levels", [bounded_json.MOST_LEVELS - 4, 300, 500, 9_999])
def test_what_the_decoder_cuts_off_is_refused_and_never_taken_for_a_smaller_spec(
    levels: int,
) -> None:
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    spec = {**SMALLEST, "template": {"spec": "HERE"}}
    text = json.dumps({"metadata": metadata, "spec": spec})
    deep = text.replace('"HERE"', '{"a":' * levels + "1" + "}" * levels)
    job = read_job(bounded_json.decode(deep.encode()), NOW)
    assert isinstance(job, InvalidJob)
    assert "more than 50 objects and lists" in job.problem.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("replicas", {"a": None}, "Input should be a valid integer, got {'a': None}"),
        ("networkPolicy", {}, "Input should be 'Isolated' or 'None', got {}"),
        ("managedBy", {"": ""}, "Input should be a valid string, got {'': ''}"),
    ],
)
def test_an_object_in_the_wrong_place_is_named_like_any_other_value(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec({**SMALLEST, field: value})
    assert str(refusal.value) == f"spec.{field}: {message}"


def test_a_rule_about_several_fields_or_a_missing_one_quotes_no_whole_section() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec({**SMALLEST, "replicas": 100_000})
    assert ", got" not in str(refusal.value)


def test_a_problem_of_the_template_stands_under_its_own_path() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec({**SMALLEST, "template": {"spec": 7}})
    assert str(refusal.value) == "spec.template.spec: must be an object, got 7"


@pytest.mark.parametrize(
    ("storage", "given"),
    [
        ({}, "none of them"),
        (
            {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "a"}},
            "persistentVolumeClaim and",
        ),
    ],
)
def test_a_storage_of_two_kinds_or_none_learns_which_are_there(storage: Any, given: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"emptyDir, got {given}"):
        parse_spec({**SMALLEST, "checkpoint": {"storage": storage}})


# --- size -----------------------------------------------------------------------------------------

MOST_SECONDS = 0.3
"""Of CPU. It takes 0.1 s at most here; without bounds it was up to 28 s."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [150_000, MOST_VALUES // 4])
def test_a_spec_takes_little_time_however_large_it_is(kind: str, values: int) -> None:
    """The API server takes 1.5 MB. So long takes a round that reads a spec, and once it checks the
    pods that follow.
    """
    spec, problems = make_large(kind, values), set[str]()
    seconds = least_cpu_seconds(lambda: problems.add(problem_of(spec)), MOST_SECONDS)
    assert seconds < MOST_SECONDS
    if values > MOST_VALUES:
        assert [problem.partition(": has more than ")[0] for problem in problems] == ["spec"]


def test_the_bounds_of_a_specs_size_are_exact_and_named() -> None:
    value = {"name": "A", "value": "x" * (MOST_CHARACTERS - 5_000)}
    texts = with_main(command=["python", "train.py"], env=[value])
    assert problem_of(texts) == ""
    value["value"] += "x" * 5_000
    assert problem_of(texts).startswith(f"spec: has more than {MOST_CHARACTERS} characters: put")
    values = with_pod(tolerations=[{}] * (MOST_VALUES - 100))
    assert problem_of(values) == ""
    values["template"]["spec"]["tolerations"] += [{}] * 100
    assert problem_of(values).startswith(f"spec: has more than {MOST_VALUES} values")
