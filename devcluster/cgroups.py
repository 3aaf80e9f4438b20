"""Control groups. Each node has one, so that a simulated power cut ends all its processes.

The tests run on version 1 (a hierarchy per controller). The code for version 2 follows the kernel's
documentation.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from devcluster.errors import UnsupportedMachineError
from devcluster.waiting import wait_until
from tools.locks import locked

MOUNT = Path("/sys/fs/cgroup")
LOCK = Path("/run/regroup-devcluster/cgroups.lock")
"""Held while a group is created. Otherwise, the removal of another cluster could delete the empty
parent.
"""
CONTROLLERS_V2 = ("cpuset", "cpu", "io", "memory", "pids", "hugetlb")
CPU_WEIGHTS = {"cpu.shares": "8192", "cpu.weight": "800"}
"""CPU weights of version 1 and version 2, eight times the kernel's default.

Nodes stand for separate machines, so their speed should not depend on other processes of this
machine.
"""


@cache
def hierarchies() -> tuple[Path, ...]:
    """Mount points of all control group hierarchies."""
    found: list[Path] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and Path(mount_point).is_relative_to(MOUNT):
            found.append(Path(mount_point))
    if not found:
        raise UnsupportedMachineError(
            "No control groups are mounted below /sys/fs/cgroup: mount them (`mount -t cgroup2 "
            "none /sys/fs/cgroup`)."
        )
    return tuple(dict.fromkeys(found))


def is_version_2() -> bool:
    """Whether this machine uses control groups of version 2, neither version 1 nor the hybrid."""
    return (MOUNT / "cgroup.controllers").exists()


def create(group: str) -> None:
    """Create a control group in every hierarchy, with all controllers."""
    with locked(LOCK, "the control groups"):
        for hierarchy in hierarchies():
            _create(hierarchy, Path(group))


def _create(hierarchy: Path, group: Path) -> None:
    folder = hierarchy
    for part in group.parts:
        if is_version_2():
            _delegate(folder)
        folder = folder / part
        folder.mkdir(exist_ok=True)
        _inherit_cpuset(folder)
    _prefer(hierarchy / group.parts[0])


def _prefer(folder: Path) -> None:
    """Give the processes of a group a higher CPU weight than others have."""
    for name, weight in CPU_WEIGHTS.items():
        if (folder / name).exists():
            (folder / name).write_text(weight)


def _delegate(folder: Path) -> None:
    """Version 2: enable the controllers for the children of a group."""
    available = (folder / "cgroup.controllers").read_text().split()
    enabled = (folder / "cgroup.subtree_control").read_text().split()
    wanted = [name for name in CONTROLLERS_V2 if name in available and name not in enabled]
    if not wanted:
        return
    try:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as refused:
        raise UnsupportedMachineError(
            f"The kernel refuses to delegate {', '.join(wanted)} at {folder} ({refused.strerror}): "
            "inside a container, move its processes into a child group first."
        ) from refused


def _inherit_cpuset(folder: Path) -> None:
    """Version 1: copy the cpuset of the parent. A new cpuset is empty, and no
    process can enter it.
    """
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = folder / name
        if not is_version_2() and own.exists() and not own.read_text().strip():
            own.write_text((folder.parent / name).read_text())


def joining(group: str) -> list[str]:
    """Prefix of a command line. It enters `group` and then executes the rest of the line."""
    files = " ".join(
        shlex.quote(str(hierarchy / group / "cgroup.procs")) for hierarchy in hierarchies()
    )
    return [
        "/bin/sh",
        "-c",
        f'for f in {files}; do echo $$ > "$f" || exit 1; done; exec "$@"',
        "sh",
    ]


@contextmanager
def inside(group: str) -> Iterator[None]:
    """Within, the CPU weight of this process and of what it starts is that of the group."""
    create(group)
    former = _own_group()
    _enter(group)
    try:
        yield
    finally:
        _enter(former)
        for left in (group, str(Path(group).parent)):
            remove_if_empty(left)


def _enter(group: str) -> None:
    (_cpu_hierarchy() / group / "cgroup.procs").write_text(str(os.getpid()))


def _own_group() -> str:
    """The group of this process that decides about its CPU weight."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or (is_version_2() and not controllers):
            return path.lstrip("/")
    raise UnsupportedMachineError("This process has no control group for its CPU weight.")


def _cpu_hierarchy() -> Path:
    if is_version_2():
        return MOUNT
    return next(path for path in hierarchies() if "cpu" in path.name.split(","))


def processes(group: str) -> set[int]:
    """The ids of all processes in a group and its subgroups."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for folder in _tree(hierarchy / group):
            try:
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
            except OSError:  # the group was removed meanwhile
                continue
    return found


def kill(group: str) -> None:
    """SIGKILL all processes of a group, including new forks, and wait until none is left."""

    def emptied() -> bool:
        for pid in processes(group):
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue
        _set_frozen(group, False)  # a frozen process dies when it thaws
        return not processes(group)

    wait_until(emptied, 20, f"The end of all processes in the control group {group}")


def freeze(group: str) -> None:
    """Stop all processes of a group. Their sockets stay open."""
    _set_frozen(group, True)
    wait_until(lambda: is_frozen(group), 5, f"The freezing of the control group {group}")


def thaw(group: str) -> None:
    """Undo `freeze`."""
    _set_frozen(group, False)


def is_frozen(group: str) -> bool:
    """Whether all processes of a group are stopped."""
    if is_version_2():
        state, mark = MOUNT / group / "cgroup.events", "frozen 1"
    else:
        state, mark = MOUNT / "freezer" / group / "freezer.state", "FROZEN"
    return state.exists() and mark in state.read_text()


def _set_frozen(group: str, frozen: bool) -> None:
    if is_version_2():
        states = {MOUNT / group / "cgroup.freeze": "1" if frozen else "0"}
    elif frozen:
        states = {MOUNT / "freezer" / group / "freezer.state": "FROZEN"}
    else:
        states = {folder / "freezer.state": "THAWED" for folder in _tree(MOUNT / "freezer" / group)}
    for path, value in states.items():
        if path.exists():
            path.write_text(value)


def remove(group: str) -> None:
    """Remove an empty group and its subgroups from every hierarchy."""

    def removed() -> bool:
        for hierarchy in hierarchies():
            for folder in reversed(_tree(hierarchy / group)):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:  # busy: the kernel still removes a process
                    return False
        return True

    wait_until(removed, 10, f"The removal of the control group {group}")


def remove_if_empty(group: str) -> None:
    """Remove a group unless it has processes or subgroups, which may be another cluster's."""
    with locked(LOCK, "the control groups"):
        for hierarchy in hierarchies():
            with suppress(OSError):
                (hierarchy / group).rmdir()


def _tree(folder: Path) -> list[Path]:
    """A folder and all folders below it, parents first. Empty when it does not exist."""
    if not folder.is_dir():
        return []
    found = [folder]
    try:
        for child in sorted(folder.iterdir()):
            if child.is_dir():
                found += _tree(child)
    except FileNotFoundError:
        return found
    return found


def check() -> None:
    """Raise UnsupportedMachineError unless the controllers that kubelet and runc need are
    available.
    """
    if is_version_2():
        missing = {"cpu", "memory", "pids"} - set(
            (MOUNT / "cgroup.controllers").read_text().split()
        )
    else:
        mounted = {controller for path in hierarchies() for controller in path.name.split(",")}
        missing = {"cpu", "cpuset", "devices", "freezer", "memory", "pids"} - mounted
    if missing:
        raise UnsupportedMachineError(
            f"This machine lacks the control group controllers {', '.join(sorted(missing))}."
        )
