"""The wall clock that the processes of a pod see, set by libfaketime."""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path

from devcluster import packages
from devcluster.processes import read_proc
from devcluster.progress import silent
from soak.process import Process

PACKAGE = {"faketime": "faketime"}
LIBRARY = "libfaketimeMT.so.1"
CONFIG_MAP = "soak-clock"
MOUNTED = "/clock"


def config_map() -> dict[str, object]:
    """The ConfigMap that brings the library into pods. Raises DevclusterError, OSError."""
    packages.ensure(PACKAGE, silent)
    (library,) = Path("/usr/lib").glob(f"*/faketime/{LIBRARY}")
    content = base64.b64encode(library.read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP},
        "binaryData": {LIBRARY: content},
    }


def ahead(process: Process) -> float:
    """Seconds that the clock of a process is ahead, as a new process with its variables and files
    sees it. NaN when it cannot be asked.
    """
    variables = dict(
        word.split("=", 1)
        for word in read_proc(process.pid, "environ").split("\0")
        if word.startswith(("LD_PRELOAD=", "FAKETIME", "DONT_FAKE"))
    )
    enter = ["nsenter", f"--target={process.pid}", "--mount", "env"]
    command = [*enter, *(f"{k}={v}" for k, v in variables.items()), "date", "+%s"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return float(found.stdout) - time.time() if found.returncode == 0 else float("nan")
