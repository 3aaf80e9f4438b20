"""`regroup validate`: every mistake with its line, field, value and a way out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from tests.support.specs import VALID_JOB


def validate(tmp_path: Path, text: str) -> tuple[int, list[str]]:
    """Exit code, and the lines of the answer without the folder."""
    file = tmp_path / "job.yaml"
    file.write_text(textwrap.dedent(text))
    result = CliRunner().invoke(main, ["validate", str(file)])
    return result.exit_code, [
        line.removeprefix(f"{tmp_path}/") for line in result.output.splitlines()
    ]


def test_the_smallest_job_is_valid(tmp_path: Path) -> None:
    assert validate(tmp_path, VALID_JOB) == (0, ["job.yaml: TrainingJob gpt is valid"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "model:",
            "modle:",
            "job.yaml:9: spec.trainer.modle: unknown field: did you mean 'model'?",
        ),
        (
            "replicas: 3",
            "replica: 3",
            "job.yaml:5: spec.replica: unknown field: did you mean 'replicas'?",
        ),
        (
            "minReplicas",
            "minReplica",
            "job.yaml:6: spec.elasticPolicy.minReplica: unknown field: did you mean 'minReplicas'?",
        ),
        ("steps: 500", "steps: many", "job.yaml:11: spec.trainer.training.steps: "),
        ("steps: 500", "steps: 0", "got 0"),
        ("preset: 1m", "preset: huge", "preset 'huge' is unknown: use one of tiny, 1m, 10m, 124m"),
        (
            "minReplicas: 2",
            "minReplicas: 4",
            "replicas 3 must lie between elasticPolicy.minReplicas (4)",
        ),
        ("name: gpt}", "name: Gpt_1}", "job.yaml:3: metadata.name: 'Gpt_1' is no valid name"),
        ("kind: TrainingJob", "kind: Job", "job.yaml:2: kind: must be TrainingJob, got 'Job'"),
        ("spec:", "spce:", "unknown field: did you mean 'spec'?"),
        (
            "replicas: 3",
            "replicas: 3\n  metrics: {rankDetail: full}",
            "job.yaml:6: spec.metrics.rankDetail: not supported",
        ),
        ("strategy: fsdp", "strategy: hsdp", "hsdp needs the number of ranks"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    code, lines = validate(tmp_path, VALID_JOB.replace(old, new, 1))
    assert code == 1
    assert any(expected in line for line in lines), lines


def test_all_mistakes_are_reported_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        VALID_JOB.replace("replicas: 3", "replicas: three")
        .replace("steps: 500", "stepz: 500")
        .replace("gpt}", "9}")
    )
    _, lines = validate(tmp_path, text)
    assert [int(line.split(":")[1]) for line in lines] == [3, 5, 11]


def test_the_second_document_has_its_own_lines(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, VALID_JOB + "---\n" + VALID_JOB.replace("model:", "modle:"))
    assert code == 1
    assert lines == ["job.yaml:21: spec.trainer.modle: unknown field: did you mean 'model'?"]


def test_what_is_not_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, "kind: TrainingJob\nspec: {replicas: [\n")
    assert code == 1
    assert "not YAML" in lines[0]
    assert "job.yaml:3" in lines[0]


@pytest.mark.parametrize("text", ["", "---\n---\n"])
def test_an_empty_file_is_reported(tmp_path: Path, text: str) -> None:
    code, lines = validate(tmp_path, text)
    assert code == 1
    assert "is empty" in lines[0]


def test_a_list_is_no_job(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, "- a\n- b\n")
    assert code == 1
    assert "a TrainingJob is a mapping" in lines[0]


def test_a_missing_file_is_reported() -> None:
    result = CliRunner().invoke(main, ["validate", "/no/such/file.yaml"])
    assert result.exit_code == 2
    assert "does not exist" in result.output
