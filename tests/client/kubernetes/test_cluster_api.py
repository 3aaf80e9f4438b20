"""Whose clock counts: that of the API server, not that of the user's machine."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.kubernetes.cluster_api import ServerClock
from regroup_operator.api.resource import Object
from regroup_operator.api.timestamps import format_time
from tests.support.cluster_objects import job_object, running_status
from tests.support.loopback_server import LoopbackServer, QuietHandler

HOUR = timedelta(hours=1)


def header(time: datetime) -> str:
    return format_datetime(time, usegmt=True)


def seconds_ahead(clock: ServerClock) -> float:
    """Of this machine's own."""
    return (clock.now() - datetime.now(UTC)).total_seconds()


def test_before_the_first_answer_this_machines_clock_counts() -> None:
    assert abs(seconds_ahead(ServerClock())) < 30


@pytest.mark.parametrize("given", [None, "", "tomorrow", "Fri, 31 Dec 9999 23:59:60 -2359"])
def test_an_answer_without_a_time_changes_nothing(given: str | None) -> None:
    clock = ServerClock()
    clock.on_answer(given)
    assert abs(seconds_ahead(clock)) < 30


def test_the_servers_time_goes_on_between_its_answers() -> None:
    clock = ServerClock()
    clock.on_answer(header(datetime.now(UTC) - HOUR))
    first = clock.now()
    assert abs(seconds_ahead(clock) + 3600) < 30
    clock.on_answer(header(first))
    assert clock.now() - first < timedelta(seconds=30)
    clock.on_answer(header(datetime.now(UTC) + HOUR))
    assert abs(seconds_ahead(clock) - 3600) < 30, "its clock was set"


class HourBehind(LoopbackServer):
    """An API server whose operator has just renewed its Lease."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0)

    def write_kubeconfig(self, file: Path) -> None:
        cluster = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        file.write_text(yaml.safe_dump(config))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class Handler(QuietHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return header(datetime.now(UTC) - HOUR)

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(_found(self.path)).encode())

        return Handler


def _found(path: str) -> Object:
    if "/leases/" in path:
        renewed = format_time(datetime.now(UTC) - HOUR)
        return {"spec": {"renewTime": renewed, "holderIdentity": "operator-1"}}
    if path.endswith("/trainingjobs/gpt"):
        return job_object(running_status())
    return {"items": [], "groups": [{"name": "regroup.dev"}], "gitVersion": "v1.35.0"}


@pytest.mark.parametrize("verb", [("why", "gpt"), ("doctor",)])
def test_an_operator_is_at_work_though_the_users_clock_is_ahead(
    tmp_path: Path, verb: tuple[str, ...]
) -> None:
    config = tmp_path / "config"
    with HourBehind() as server:
        server.write_kubeconfig(config)
        command = ("--kubeconfig", str(config), "-n", "team", *verb)
        done = CliRunner(env={"COLUMNS": "120"}).invoke(trainingjob, command)
    assert "operator-1 is at work" in done.output.replace("the operator (operator-1)", "operator-1")
