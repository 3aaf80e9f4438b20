"""A real OpenTelemetry Collector, which writes the spans that it takes to a file."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from devcluster.binaries import ProgramApart
from devcluster.progress import to_stderr
from regroup_trainer.system.machine_address import free_port
from tests.support.otlp_receiver import parse_request, spans_in
from tests.support.waiting import wait_until

COLLECTOR = ProgramApart("collector", ".")


@dataclass(frozen=True)
class Collector:
    """What it takes is in `spans` once it has ended."""

    port: int
    file: Path
    log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        """All that it has taken."""
        lines = self.file.read_bytes().splitlines()
        return [span for line in lines for span in spans_in(parse_request(line))]

    def complaints(self) -> list[str]:
        """Lines of its log about what it could not take or write."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.split("\t")[1] in ("warn", "error")]

    def takes(self) -> bool:
        """Whether it listens."""
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def running_collector(folder: Path) -> Iterator[Collector]:
    """Inside, a collector runs, with its files in `folder`."""
    collector = Collector(free_port(), folder / "spans.json", folder / "collector.log")
    command = (COLLECTOR.build(to_stderr()), f"yaml:{json.dumps(_configuration(collector))}")
    with collector.log.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until("the collector listens", collector.takes)
            yield collector
        finally:
            process.terminate()  # it writes what it still holds


def _configuration(collector: Collector) -> dict[str, object]:
    http = {"endpoint": f"127.0.0.1:{collector.port}"}
    return {
        "receivers": {"otlp": {"protocols": {"http": http}}},
        "exporters": {"file": {"path": str(collector.file)}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
        },
    }
