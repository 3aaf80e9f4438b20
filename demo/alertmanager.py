"""A real Alertmanager on loopback, and what it has received."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import programs
from demo.waiting import wait_for
from regroup.local.processes import ADDRESS
from regroup_trainer.system.machine_address import free_port

IN_NAMESPACE = (
    *("unshare", "--mount", "--map-root-user", "sh", "-c"),
    'mount --bind "$1" /usr/share && shift && exec "$@"',
    "sh",
)
"""Debian's Alertmanager reads its templates from /usr/share, where an unpacked package has none."""
CONFIGURATION = "{route: {receiver: nobody}, receivers: [{name: nobody}]}"
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Alertmanager:
    """A running one, at `address` (host:port)."""

    address: str

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are active now, with `labels` and `annotations`. Raises OSError."""
        with urllib.request.urlopen(f"http://{self.address}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found

    def _ready(self) -> bool:
        try:
            self.alerts()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True


@contextmanager
def running_alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Inside, an Alertmanager runs, with its data in `folder`. Raises MissingError, and StoryError
    when it does not start.
    """
    folder.mkdir(parents=True)
    (folder / "alertmanager.yml").write_text(CONFIGURATION)
    address = f"{ADDRESS}:{free_port()}"
    program = Path(programs.alertmanager())
    command = [
        *IN_NAMESPACE,
        str(program.parent.parent / "share"),
        str(program),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",  # it is alone
    ]
    log = folder / "alertmanager.log"
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            manager = Alertmanager(address)
            wait_for("the start of Alertmanager", manager._ready, READY_SECONDS, hint=log.read_text)
            yield manager
        finally:
            process.terminate()
