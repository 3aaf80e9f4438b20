"""The variables that say where spans are sent."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from regroup_trainer.system.otlp_settings import OtlpSettings, exporter_of

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def read(**variables: str) -> OtlpSettings:
    """What these variables say, beside an endpoint."""
    found = OtlpSettings.read({**BASE, **variables}, "regroup-coordinator")
    assert found is not None
    return found


def test_the_endpoint_for_all_signals_leaves_out_the_path_and_that_for_traces_has_it() -> None:
    assert read().url == "http://collector:4318/v1/traces"
    own = read(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="https://collector/otlp?tenant=a")
    assert own.url == "https://collector/otlp?tenant=a"
    assert own.place == "https://collector"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**BASE, "OTEL_SDK_DISABLED": "TRUE"},
        {**BASE, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_or_switched_off_nothing_is_sent(variables: dict[str, str]) -> None:
    assert OtlpSettings.read(variables, "regroup") is None


def test_the_standard_variables_count_those_for_traces_first() -> None:
    settings = read(
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret,x=1,no pair",
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="2500",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
        OTEL_EXPORTER_OTLP_CERTIFICATE="/ca.pem",
        OTEL_RESOURCE_ATTRIBUTES="k8s.cluster.name=a,team=b%2Cc",
    )
    assert settings.headers == {"authorization": "Bearer s3cret", "x": "1"}
    assert "s3cret" not in repr(settings)
    assert (settings.seconds, settings.certificate) == (2.5, "/ca.pem")
    assert settings.attributes == {"k8s.cluster.name": "a", "team": "b,c"}
    assert settings.service == "regroup-coordinator"
    assert read(OTEL_SERVICE_NAME="gpt").service == "gpt"
    assert read(OTEL_EXPORTER_OTLP_TIMEOUT="soon").seconds == 10
    assert read(OTEL_EXPORTER_OTLP_TIMEOUT="1e9").seconds == 60


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://host:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port", "http://host:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a\nb", "http://host:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:s3cret@collector", "_HEADERS"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318"),
    ],
)
def test_a_wrong_variable_is_named_and_costs_the_traces_alone(
    variable: str, value: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert exporter_of({**BASE, variable: value}, "regroup") is None
    assert problem in caplog.text
    assert variable in caplog.text
    assert "s3cret" not in caplog.text


def test_without_an_endpoint_the_coordinator_imports_nothing_of_it() -> None:
    script = """
import sys
import regroup_trainer.coordinator.serving.coordinator_process
from regroup_trainer.system.otlp_settings import exporter_of
assert exporter_of({}, "regroup") is None
print([name for name in sys.modules if "span" in name or "trace" in name.split(".")[-1]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = done.stdout
    assert "regroup_trainer" not in loaded
