"""A job's volume that can be full, read-only, broken, slow or silent: memory behind FUSE."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from devcluster import packages, volumes
from devcluster.cluster import Cluster
from devcluster.processes import Launch
from devcluster.progress import silent
from devcluster.provisioner import make_folder
from devcluster.waiting import wait_until
from soak.waiting import until

SIZE = "256Mi"
FUSE = {"/usr/lib/python3/dist-packages/fusepy.py": "python3-fusepy"}
STOPPED_SECONDS, RUNNING_SECONDS = 0.25, 0.02
"""A slow volume answers only so long of the time."""
PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class SoakVolume:
    """A persistent volume. A claim binds to it by its name as `storageClassName`."""

    name: str
    content: Path
    """Its content, which this machine reads whatever is done to the volume."""
    served: Path
    """What pods mount."""
    refusal: Path
    """While this file exists, the volume takes no change. With the number of an error in it, all
    fails with that error.
    """
    server: int
    """The process that answers for it."""

    @classmethod
    def make(cls, cluster: Cluster, name: str) -> SoakVolume:
        """Mount it and make its object. Raises DevclusterError."""
        packages.ensure(FUSE, silent)
        content, served = cluster.volumes / f"content-{name}", cluster.volumes / f"served-{name}"
        described = volumes.limited(name, SIZE, content)
        make_folder(served)
        server, refusal = f"volume-{name}", cluster.volumes / f"refusal-{name}"
        program = Path(__file__).with_name("volume_server.py")
        cluster.processes.start(
            Launch(server, ("/usr/bin/python3", program, content, served, refusal))
        )
        wait_until(served.is_mount, 10, f"The mount {served}")
        described["spec"]["hostPath"]["path"] = str(served)
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(described))
        pid = cluster.processes.pid(server)
        assert pid is not None, f"{server} serves and does not run"
        return cls(name, content, served, refusal, pid)

    def stop(self) -> None:
        """Whoever uses it waits."""
        os.kill(self.server, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `stop`."""
        os.kill(self.server, signal.SIGCONT)

    def answer_seconds(self) -> float | None:
        """How long it takes to answer; None: longer than `PROBE_SECONDS`."""
        began = time.monotonic()
        stat: list[str | Path] = ["stat", self.served / str(began)]  # nobody has it cached
        # It is not waited for: a request that the server has read cannot be given up.
        probe = subprocess.Popen(stat, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answered = until(lambda: probe.poll() is not None, PROBE_SECONDS, 0.005)
        return time.monotonic() - began if answered else None


class Slowness:
    """A volume that answers only now and then, until `end`."""

    def __init__(self, volume: SoakVolume) -> None:
        self._volume = volume
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="slow-volume", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._volume.stop()
                self._end.wait(STOPPED_SECONDS)
                self._volume.go_on()
                self._end.wait(RUNNING_SECONDS)
        except Exception as error:  # raised in the main thread: the volume is not as it should be
            self._error = error

    def end(self) -> None:
        """The volume is as fast as before. Raises RuntimeError if it was not slow all the time: no
        later fault may count on a volume whose server is gone.
        """
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise RuntimeError(f"the volume was not slow to the end: {self._error!r}")
