"""The configuration of pods by environment variables."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from regroup_trainer.protocol.environment import AgentEnvironment, CoordinatorEnvironment
from tests.support.coordinator_simulation import make_desired


def test_an_environment_survives_its_variables() -> None:
    environment = CoordinatorEnvironment(term=2, node="n", desired=make_desired().model_dump_json())
    assert CoordinatorEnvironment.read(environment.variables()) == environment
    assert environment.first_desired() == make_desired()
    assert AgentEnvironment.variable("member") == "REGROUP_MEMBER"


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ValidationError, match="coordinator_url"):
        AgentEnvironment.read({})
