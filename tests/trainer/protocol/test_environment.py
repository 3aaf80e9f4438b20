"""The configuration of pods by environment variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.environment import (
    AgentEnvironment,
    CoordinatorEnvironment,
    read_token,
)
from regroup_trainer.protocol.exit_codes import WRONG_USAGE
from tests.support.coordinator_simulation import make_desired


def test_an_environment_survives_its_variables() -> None:
    environment = CoordinatorEnvironment(term=2, node="n", desired=make_desired().model_dump_json())
    assert CoordinatorEnvironment.read(environment.variables()) == environment
    assert environment.first_desired() == make_desired()
    assert AgentEnvironment.variable("member") == "REGROUP_MEMBER"


def environ(**changed: str) -> dict[str, str]:
    """Variables of an agent."""
    given = {"coordinator_url": "http://gpt", "namespace": "ml", "job": "gpt", "member": "uid-0"}
    given |= {"index": "0", "pod": "gpt-w0-1", "node": "n1", "address": "10.0.0.1"} | changed
    return {AgentEnvironment.variable(field): value for field, value in given.items()}


def test_a_missing_variable_and_a_wrong_one_are_named_with_what_to_do() -> None:
    variables = environ(index="first")
    del variables["REGROUP_POD"]
    with pytest.raises(ConfigurationError) as raised:
        AgentEnvironment.read(variables)
    text = str(raised.value)
    assert text.startswith("REGROUP_INDEX: Input should be a valid integer")
    assert "got 'first'; REGROUP_POD is missing: the operator sets these variables" in text
    assert "spec.template" in text


def test_a_desired_that_cannot_be_read_names_its_field() -> None:
    wrong = make_desired().model_dump_json().replace('"replicas":3', '"replicas":"three"')
    environment = CoordinatorEnvironment(term=2, node="n", desired=wrong)
    with pytest.raises(
        ConfigurationError, match=r"^REGROUP_DESIRED: replicas: .* got 'three': the"
    ):
        environment.first_desired()


def test_a_token_that_is_not_there_is_named_with_what_mounts_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_token(str(tmp_path / "token"))
    path = tmp_path / "token"
    expected = f"cannot read the job's token from {path} (No such file or directory): the pod"
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize("program", ["agent", "coordinator"])
def test_a_process_without_its_variables_says_so_in_one_line(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", f"regroup_trainer.{program}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == WRONG_USAGE
    line = ended.stderr.rstrip("\n")
    assert "\n" not in line
    assert f"ERROR the {program} cannot start: REGROUP_" in line
