"""`regroup validate`: every mistake with its line, field, value and a way out."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup.cli.command_line import main
from regroup_operator.api.spec_reader import known_fields
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
            "replicas: 3\n  scheduling: {gang: PodGroup}",
            "job.yaml:6: spec.scheduling.gang: not supported",
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


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "  resources: {limits: {cpu: banana}}\n",
            "job.yaml:12: spec.resources.limits[cpu]: must be an amount such",
        ),
        (
            "  template: {spec: {containers: [{name: trainer, env: null}]}}\n",
            "spec.template.spec.containers[trainer].env: got None, which would remove",
        ),
        (
            "  template: {metadata: {labels: [a]}}\n",
            "spec.template.metadata.labels: must be an object, got ['a']",
        ),
    ],
)
def test_a_pod_that_kubernetes_would_refuse_is_found_in_the_file(
    tmp_path: Path, extra: str, message: str
) -> None:
    code, lines = validate(tmp_path, VALID_JOB + extra)
    assert code == 1
    assert message in lines[0]


def test_a_command_that_is_no_script_is_named_with_its_line(tmp_path: Path) -> None:
    head = VALID_JOB.partition("spec:")[0]
    container = "{name: trainer, command: [nosuchprogram]}"
    text = f"{head}spec:\n  replicas: 1\n  template: {{spec: {{containers: [{container}]}}}}\n"
    code, (line,) = validate(tmp_path, text)
    assert code == 1
    assert line.startswith(
        "job.yaml:6: spec.template.spec.containers[trainer].command: 'nosuchprogram' names no"
    )


def test_a_wrong_name_is_not_reported_for_the_pods_too(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, VALID_JOB.replace("name: gpt}", 'name: "a b"}'))
    assert code == 1
    assert [line.split(": ")[:2] for line in lines] == [["job.yaml:3", "metadata.name"]]


def test_the_second_document_has_its_own_lines(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, VALID_JOB + "---\n" + VALID_JOB.replace("model:", "modle:"))
    assert code == 1
    assert lines == ["job.yaml:21: spec.trainer.modle: unknown field: did you mean 'model'?"]


def test_what_is_not_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, "kind: TrainingJob\nspec: {replicas: [\n")
    assert code == 1
    assert "cannot be read as YAML" in lines[0]
    assert "job.yaml:3" in lines[0]


COMMAND = "apiVersion: regroup.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  replicas: " + "9" * 5000, "job.yaml:5: cannot be read as YAML: a value is no int"),
        ("  replicas: !!int ''", "job.yaml:5: cannot be read as YAML: a value is no int"),
        ("  template: " + "{a: " * 2000, "job.yaml:5: cannot be read as YAML: more than 100 lev"),
        ("  x: &x\n  - *x", "job.yaml:6: cannot be read as YAML: *x stands in what it names"),
        ("  replicas: 1\n  replicas: 2", "job.yaml:6: cannot be read as YAML: the key 'replicas' "),
        ('  "a\\ud800": 1', r"job.yaml:4: spec: Input should be a valid string, unable to parse"),
        ('"a\\ud800": 1', r"job.yaml:5: a\ud800: unknown field: known here are apiVersion"),
        ("  0x" + "f" * 900 + ": 1", "spec"),
        ("  replicas: 0x" + "f" * 900, "spec.replicas: Input should be less than or equal to 1000"),
        ("#" * (1 << 20), "job.yaml: has more than 1048576 bytes: give the file of a job"),
        ("  replicas: \udcff", "job.yaml:5: no text in UTF-8: save the file as UTF-8"),
        (
            "  x0: &a0 [x, x]\n"
            + "\n".join(f"  x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)),
            "cannot be read as YAML: more than 20000 values (*a counts as what it names)",
        ),
        (
            "  replicas: &a [[[[x, x], x], x], x]\n  spares: [*a, *a, *a, *a, *a, *a, *a, *a]",
            "spec.spares: Input should be a valid integer",
        ),
    ],
)
def test_hostile_files_are_refused_in_one_short_line(
    tmp_path: Path, spec: str, expected: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes((COMMAND + spec).encode(errors="surrogateescape"))
    result = CliRunner().invoke(main, ["validate", str(file)])
    assert isinstance(result.exception, SystemExit), result.exception
    assert expected in result.output
    assert max(map(len, result.output.splitlines())) < 500 + len(str(tmp_path))


def test_a_file_whose_name_is_no_text_is_checked_like_any_other(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/\xff.yaml"
    Path(os.fsdecode(file)).write_text(VALID_JOB)
    result = CliRunner().invoke(main, ["validate", os.fsdecode(file)])
    assert (result.exit_code, result.exception) == (0, None)
    assert result.output.endswith("\N{REPLACEMENT CHARACTER}.yaml: TrainingJob gpt is valid\n")


def test_values_may_be_named_and_merged(tmp_path: Path) -> None:
    text = VALID_JOB.replace("replicas: 3", "replicas: &n 3").replace(
        "maxReplicas: 4", "maxReplicas: *n"
    )
    assert validate(tmp_path, text) == (0, ["job.yaml: TrainingJob gpt is valid"])


FIELDS = [*known_fields(()), "apiVersion", "metadata", "spec", "name", "containers", "command"]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3) | st.integers(), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=ODD, spec=st.dictionaries(st.sampled_from(FIELDS), ODD))
def test_no_document_ends_in_another_error(
    value: object, spec: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "hostile.yaml"
    job = {"apiVersion": "regroup.dev/v1alpha1", "kind": "TrainingJob", "metadata": value}
    file.write_text(yaml.safe_dump_all([value, {**job, "spec": spec}], allow_unicode=True))
    result = CliRunner().invoke(main, ["validate", str(file)])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1


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
