"""The operator's own configuration."""

from __future__ import annotations

import pytest

from regroup_operator.api.settings import Settings
from regroup_operator.errors import SettingsError

GIVEN = {
    "REGROUP_OPERATOR_TRAINER_IMAGE": "t:1",
    "REGROUP_OPERATOR_COORDINATOR_IMAGE": "o:1",
    "REGROUP_OPERATOR_KEY_SECRET": "regroup-system/regroup-key",
    "REGROUP_OPERATOR_LEASE": "regroup-system/regroup-operator",
}


def test_lists_and_objects_are_json() -> None:
    settings = Settings.read(
        {**GIVEN, "REGROUP_OPERATOR_NAMESPACES": '["a", "b"]', "REGROUP_OPERATOR_METRICS_PORT": "9"}
    )
    assert settings.namespaces == ("a", "b")
    assert settings.metrics_port == 9
    assert settings.max_workers == 4096
    assert settings.coordinator_resources["limits"] == {"memory": "256Mi"}
    assert settings.coordinators_grow
    fixed = {**GIVEN, "REGROUP_OPERATOR_COORDINATORS_GROW": "false"}
    assert not Settings.read(fixed).coordinators_grow


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRAINER_IMAGE", ""),
        ("NAMESPACES", "a,b"),
        ("METRICS_PORT", "70000"),
        ("NETWORK_PEERS", '{"a": 1}'),
        ("KEY_SECRET", "regroup-key"),
        ("KEY_SECRET", "a/../kube-system/b"),
        ("LEASE", "regroup-operator"),
        ("COORDINATORS_GROW", "sometimes"),
        ("TRAINER_PYTHON", "3"),
        ("OTLP_ENDPOINT", "collector:4318"),
        ("OTLP_ENDPOINT", "http://me:secret@collector:4318"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"REGROUP_OPERATOR_{name}"):
        Settings.read({**GIVEN, f"REGROUP_OPERATOR_{name}": value})
