"""The wall clock that the processes of a pod see."""

from __future__ import annotations

import base64
import subprocess
import tempfile
import time
from pathlib import Path

from devcluster import packages
from devcluster.processes import read_proc
from devcluster.progress import silent
from soak.process import Process

COMPILER = {"gcc": "gcc", "/usr/include/stdlib.h": "libc6-dev"}
LIBRARY = "libclock.so"
CONFIG_MAP = "soak-clock"
MOUNTED = "/clock"


def config_map() -> dict[str, object]:
    """The ConfigMap that brings the library into pods. Raises DevclusterError."""
    with tempfile.TemporaryDirectory() as folder:
        content = base64.b64encode(compiled(Path(folder)).read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP},
        "binaryData": {LIBRARY: content},
    }


def compiled(folder: Path) -> Path:
    """The library, made in a folder. Raises DevclusterError."""
    packages.ensure(COMPILER, silent)
    library = folder / LIBRARY
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


def variables(mounted: str, file: str) -> dict[str, str]:
    """The environment of processes whose clock is ahead by the seconds in `file`."""
    return {"LD_PRELOAD": f"{mounted}/{LIBRARY}", "CLOCK_FILE": file}


def ahead(process: Process) -> float:
    """Seconds that the clock of a process is ahead, as a new process with its variables and files
    sees it. NaN when it cannot be asked.
    """
    own = read_proc(process.pid, "environ").split("\0")
    words = [word for word in own if word.startswith(("LD_PRELOAD=", "CLOCK_FILE="))]
    command = ["nsenter", f"--target={process.pid}", "--mount", "env", *words, "date", "+%s"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return float(found.stdout) - time.time() if found.returncode == 0 else float("nan")
