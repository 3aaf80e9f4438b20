"""What is left of a container's memory."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.system.memory_limit import available_bytes, resident_bytes

MIB = 1 << 20


def cgroup(folder: Path, limit: str, used: int, cache: int) -> tuple[Path, Path, Path]:
    contents = {"limit": limit, "used": str(used), "stat": f"anon 5\ninactive_file {cache}\n"}
    for name, content in contents.items():
        (folder / name).write_text(content + "\n")
    return folder / "limit", folder / "used", folder / "stat"


def machine(folder: Path, available: int) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal:       99999999 kB\nMemAvailable:   {available // 1024} kB\n")
    return path


def test_the_limit_counts_and_the_page_cache_does_not(tmp_path: Path) -> None:
    limits = [cgroup(tmp_path, str(100 * MIB), 70 * MIB, 20 * MIB)]
    assert available_bytes(limits, machine(tmp_path, 900 * MIB)) == 50 * MIB


def test_a_machine_may_have_less_than_the_limit(tmp_path: Path) -> None:
    limits = [cgroup(tmp_path, str(100 * MIB), 10 * MIB, 0)]
    assert available_bytes(limits, machine(tmp_path, 30 * MIB)) == 30 * MIB


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    limits = [cgroup(tmp_path, "max", 10 * MIB, 0), (Path("/none"), Path("/none"), Path("/none"))]
    assert available_bytes(limits, machine(tmp_path, 30 * MIB)) == 30 * MIB


def test_the_memory_of_a_process_is_known_while_it_runs() -> None:
    assert (resident_bytes(os.getpid()) or 0) > 2**20
    assert resident_bytes(2**22 + 1) is None
