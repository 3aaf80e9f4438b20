"""One operator for the tests of a file, and a job that it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regroup_operator.controller import handlers
from regroup_operator.controller.operator_metrics import JobSeries, recovery_seconds
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Api, Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, installed_operator
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.running_job import running_job


@pytest.fixture(autouse=True)
def _own_series(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The series of jobs that an operator in this process has end with the test: others look at all
    series.
    """
    monkeypatch.setattr(handlers, "job_series", JobSeries())
    yield
    recovery_seconds.clear()


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    """Takes the spans of that operator."""
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def operator(
    api: Api, receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator under the chart's service account."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        process = installed_operator(api, tmp_path_factory.mktemp("operator"))
    process.start()
    yield process
    assert process.stop() == 0
    assert "Forbidden" not in process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@pytest.fixture
def running(
    operator: OperatorProcess, namespace: Namespace
) -> Iterator[tuple[Kubelets, CoordinatorStub]]:
    """A job whose three workers run, as its coordinator reports."""
    with running_job(namespace) as running:
        yield running
