"""The operator's start, its log, and where its spans go."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partialmethod
from typing import Any

import aiohttp
import kopf
import pytest

from regroup_operator.api.settings import PREFIX, Settings
from regroup_operator.controller import operator_process
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.handlers import Operator
from regroup_operator.controller.operator_process import Basis, find_basis
from regroup_operator.controller.reconcile import round_subject
from regroup_operator.errors import ClusterError
from regroup_trainer.coordinator.generation_trace import trace_of
from regroup_trainer.protocol.environment import LOG_FORMAT
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.log_lines import Subject
from regroup_trainer.system.machine_address import free_port
from regroup_trainer.system.span_exporter import SpanExporter
from tests.support.logged_lines import FORMS
from tests.support.otlp_receiver import OtlpReceiver, values_of
from tests.support.rendering import KEYS, SETTINGS
from tests.support.traced_operator import UID, training
from tests.support.waiting import until

PLACE = "regroup-system/regroup-key"
LOGGERS = ("", "kopf", "aiohttp.access")
"""Those that the operator sets."""


class Server(Cluster):
    """An API server that gives one answer after the other, and has the key."""

    def __init__(self, *answers: bool | int) -> None:
        self.answers = list(answers)
        """Whether a right is ours, or an HTTP status; 0: no answer at all."""

    async def secret(self, *_: Any) -> dict[str, Any]:
        return {"data": {"key": base64.b64encode(b"0123456789abcdef").decode()}}

    async def may(self, *_: Any, **__: Any) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, bool):
            return answer
        raise ClusterError("POST", "/apis/authorization.k8s.io/v1", answer, "no answer")


@pytest.mark.parametrize(
    ("answers", "may"), [((True, True), True), ((True, False), False), ((False,), False)]
)
async def test_both_nodes_and_their_leases_must_be_ours_to_read(
    answers: tuple[bool, ...], may: bool
) -> None:
    assert (await find_basis(Server(*answers), PLACE)).may_watch_nodes is may


async def test_a_start_waits_for_an_api_server_that_is_away_or_overloaded() -> None:
    server = Server(0, 503, True, 429, True, True)
    assert (await find_basis(server, PLACE, pause=0)).may_watch_nodes is True
    assert server.answers == []


def _listens(address: tuple[str, int]) -> bool:
    with socket.socket() as client:
        return client.connect_ex(address) == 0


async def test_a_start_that_waits_for_an_api_server_is_alive_and_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS.model_copy(update={"health_port": free_port()})
    nobody = kopf.ConnectionInfo(server=f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(operator_process, "login", lambda: nobody)
    asking = asyncio.create_task(operator_process.ask(settings))

    async def status(path: str) -> int:
        url = f"http://127.0.0.1:{settings.health_port}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status

    try:
        address = ("127.0.0.1", settings.health_port)
        await until("a server", lambda: _listens(address))
        assert [await status("livez"), await status("healthz")] == [200, 503]
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_refusal_is_an_error_at_once() -> None:
    with pytest.raises(ClusterError):
        await find_basis(Server(401), PLACE, pause=0)


# --- the process ----------------------------------------------------------------------------------


@contextmanager
def own_log() -> Iterator[None]:
    """Inside, this process logs nothing yet, as one that has just started."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(logging.root, "handlers", [])
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def run_operator(live: Callable[[Operator], None]) -> int:
    """The operator's process from its start to its end, where there is no API server. It lives as
    `live` says. Returns the exit code.
    """
    given = SETTINGS.model_dump(include={"trainer_image", "coordinator_image", "key_secret"})
    operators: list[Operator] = []

    async def ask(_settings: Settings) -> Basis:
        return Basis(may_watch_nodes=True, keys=KEYS)

    def register(_registry: object, operator: Operator, **_: object) -> None:
        operators.append(operator)

    with own_log(), pytest.MonkeyPatch.context() as patched:
        for name, value in {**given, "lease": SETTINGS.lease, "metrics_port": "0"}.items():
            patched.setenv(f"{PREFIX}{name.upper()}", value)
        patched.setattr(operator_process, "ask", ask)
        patched.setattr(operator_process, "register", register)
        patched.setattr(operator_process, "raise_open_files", lambda: None)
        patched.setattr(kopf, "run", lambda **_: live(*operators))
        return operator_process.main()


@pytest.mark.parametrize("form", FORMS)
def test_a_line_of_its_log_names_what_the_round_is_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    def log_in_a_round() -> None:
        round_subject.set(Subject("team", "gpt", "1.2"))
        logging.getLogger("reconcile").warning("team/gpt: a pod is refused")

    monkeypatch.setenv(LOG_FORMAT, form)
    assert run_operator(lambda _operator: copy_context().run(log_in_a_round)) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    if form == "text":
        assert line.endswith(" WARNING reconcile 1.2: team/gpt: a pod is refused")
    else:
        about = {"namespace": "team", "trainingjob": "gpt", "generation": "1.2"}
        assert json.loads(line).items() >= about.items()


def test_all_its_spans_are_sent_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_a_worker(operator: Operator) -> None:
        assert operator._traces is not None
        job = training()
        job.traces = operator._traces
        job.run_rounds(1)
        job.fail(job.workers()[1])
        job.run_rounds(4)
        job.recover("1.2")

    # The receiver may be slow on a busy machine.
    monkeypatch.setattr(SpanExporter, "close", partialmethod(SpanExporter.close, 60.0))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        assert run_operator(lose_a_worker) == 0
        (request,) = receiver.requests
    (sent,) = request.resource_spans
    assert values_of(sent.resource.attributes)["service.name"] == "regroup-operator"
    assert {span.name for span in receiver.spans} == {"replace worker", "start worker"}
    of_coordinator = trace_of(UID, GenerationNumber(1, 2))
    assert {span.trace_id.hex() for span in receiver.spans} == {of_coordinator}
