"""A real Prometheus for the demo: one process of Debian's package, scraping the cluster's pods every second.

What to scrape is kept in a file by `demo.targets`. The data lies in a folder of the demo.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo import programs
from demo.errors import MissingError
from demo.promql import Server


def scrape_config(targets: Path) -> dict[str, Any]:
    """Scrape every second what a file of targets names."""
    discovery = [{"files": [str(targets)]}]
    job = {"job_name": "regroup", "honor_labels": True, "file_sd_configs": discovery}
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Prometheus:
    """A running server, and the folder it writes to."""

    server: Server
    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, folder: Path, config: dict[str, Any], *options: str) -> Prometheus:
        """Start with `config`, data in `folder`, and wait until it answers. Raises MissingError."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        command = [
            programs.prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        command += [f"--web.listen-address={address}", *options]
        with (folder / "prometheus.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        (folder / "pid").write_text(str(process.pid))
        running = cls(Server(f"http://{address}"), process, folder)
        running._wait_ready()
        return running

    def _wait_ready(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not self.server.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise MissingError(f"prometheus did not start: see {self.folder / 'prometheus.log'}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it and wait for that; nothing happens when it has ended already."""
        self.process.terminate()
        self.process.wait()
        (self.folder / "pid").unlink(missing_ok=True)


def stop_leftover(folder: Path) -> bool:
    """End the server that an earlier, interrupted demo left behind. Tells whether there was one."""
    try:
        pid = int((folder / "pid").read_text())
        ours = str(folder) in Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return False
    if ours:
        os.kill(pid, signal.SIGTERM)
    (folder / "pid").unlink(missing_ok=True)
    return ours
