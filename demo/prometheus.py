"""A real Prometheus for the demo. One process of Debian's package scrapes the cluster's pods every
second.

`demo.targets` keeps the lists of targets in files, and `demo.monitors` says which of them are
scraped. A folder of the demo holds the data.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo import programs
from demo.errors import MissingError
from demo.monitors import from_files, scrape_configs
from demo.promql import Server
from regroup.local.processes import ADDRESS
from regroup_trainer.system.machine_address import free_port

READY_SECONDS = 30.0


def scraping(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A configuration with these jobs, each of which scrapes every second."""
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    return {"global": every, "scrape_configs": [{**job, **every} for job in jobs]}


def monitored_by(monitors: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """A configuration that scrapes what monitors of the Prometheus operator choose among the
    targets in `folder`, every second. Raises MonitorError.
    """
    return scraping([from_files(job, folder) for job in scrape_configs(monitors)])


@dataclass(frozen=True)
class Prometheus:
    """A running server and its data folder."""

    server: Server
    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, folder: Path, config: dict[str, Any], *options: str) -> Prometheus:
        """Start the server with its data in `folder` and wait until it answers. Raises
        MissingError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"{ADDRESS}:{free_port()}"
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

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.server.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise MissingError(
                    f"prometheus did not start: see {self.folder / 'prometheus.log'}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server and wait until it has ended. Does nothing when it has ended already."""
        self.process.terminate()
        self.process.wait()
        (self.folder / "pid").unlink(missing_ok=True)


def stop_leftover(folder: Path) -> bool:
    """Stop the server that an interrupted demo left behind. Returns whether there was one."""
    try:
        pid = int((folder / "pid").read_text())
        ours = str(folder) in Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return False
    if ours:
        os.kill(pid, signal.SIGTERM)
    (folder / "pid").unlink(missing_ok=True)
    return ours
