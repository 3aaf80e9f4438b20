"""Lets the kernel's OOM killer end a process: its control group is full for a moment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from devcluster import cgroups
from devcluster.processes import read_proc
from soak.process import Process
from soak.waiting import until

ROOM = 32 * 2**20
"""Bytes that the group may still take; something else takes twice as much."""
SECONDS = 30.0
HOG = f"blocks = [bytearray({ROOM} // 8) for _ in range(16)]"
JOIN = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


@dataclass(frozen=True)
class _MemoryGroup:
    folder: Path
    limit: str
    usage: str
    events: str

    @classmethod
    def of(cls, pid: int) -> _MemoryGroup:
        version_2 = cgroups.is_version_2()
        for line in read_proc(pid, "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if version_2 and not controllers:
                folder = cgroups.MOUNT / path.lstrip("/")
                return cls(folder, "memory.max", "memory.current", "memory.events")
            if "memory" in controllers.split(","):
                folder = cgroups.MOUNT / "memory" / path.lstrip("/")
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
                return cls(folder, *names)
        raise LookupError(f"process {pid} is in no memory group")

    def kills(self) -> int:
        """How many processes of the group the kernel has killed."""
        words = [line.split() for line in (self.folder / self.events).read_text().splitlines()]
        return next(int(count) for name, count in words if name == "oom_kill")


def run_out(process: Process) -> int:
    """Fill the memory of the process's group; returns how many the kernel killed, 0 unless this
    process is gone.
    """
    group = _MemoryGroup.of(process.pid)
    before, limit = group.kills(), (group.folder / group.limit).read_text()
    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")  # the others of the pod stay
    used = int((group.folder / group.usage).read_text())
    (group.folder / group.limit).write_text(str(used + ROOM))
    command = ["sh", "-c", JOIN, "sh", str(group.folder), sys.executable, "-c", HOG]
    try:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as hog:
            gone = until(lambda: process.is_gone or hog.poll() is not None, SECONDS, 0.02)
            hog.kill()
        gone = gone and until(lambda: process.is_gone, 2, 0.02)
        return group.kills() - before if gone else 0
    finally:
        (group.folder / group.limit).write_text(limit)
