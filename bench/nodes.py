"""The nodes of a recovery benchmark: network namespaces on one bridge, without a route out. Making
them needs root.

What runs on a node is what is in its namespace: a node can be killed, frozen and cut off as a
whole. The control plane is a namespace of its own, the one with the bridge; this process reaches it
over a link.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from devcluster import network, packages, registry
from devcluster.processes import run
from devcluster.progress import to_stderr
from tools.locks import locked

CONTROL = 0
"""The number of the control plane; nodes are counted from 1."""
DROP_INPUT = (
    "add table inet bench; add chain inet bench input { type filter hook input priority 0; policy "
    "drop; }"
)
"""An nft rule: a node sends but receives nothing."""
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Prefix of a command line: the process ends with this one. A preexec_fn is unsafe with threads."""
NAMED = (
    *("unshare", "--uts", "--mount", "sh", "-c"),
    'mount --bind "$0" /etc/hosts && echo "$1" > /proc/sys/kernel/hostname && shift && exec "$@"',
)
"""Before a file of hosts, an address and a command line: runs it on a host of this name, which
knows these hosts.
"""
KILL_SECONDS = 60.0


@dataclass
class Nodes:
    """A context in which the nodes exist; at its end all that runs on them is killed."""

    count: int
    _cluster: str = field(default_factory=lambda: f"b{os.getpid()}")
    _block: network.Block = field(init=False)
    _hosts: Path = field(init=False)
    """The names of all nodes. c10d looks them up whenever it connects, and there is no name
    server.
    """
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        if os.geteuid():
            sys.exit("The nodes of this benchmark are network namespaces: run it as root.")
        packages.ensure(packages.NETWORK, to_stderr())
        # Another process would take the same block until ours has a route.
        with locked(registry.FOLDER / "bench-nodes.lock", "the networks of nodes", to_stderr()):
            remove_leftovers()
            self._block = last_free_block()
            network.create(self._cluster, self._block, self.count)
        addresses = [self.address(node) for node in range(self.count + 1)]
        self._hosts = Path(tempfile.mkstemp(prefix="regroup-bench-hosts-")[1])
        lines = [
            f"{form}{one} {one}\n" for one in addresses for form in ("", "::ffff:")
        ]  # c10d asks for the latter
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for node in range(self.count + 1):
                self.kill(node)
            for process in self._started:
                process.wait()
        finally:
            network.remove(self._cluster)
            self._hosts.unlink()

    def address(self, node: int) -> str:
        """The IP address of a node."""
        return self._block.node(node) if node else self._block.control_plane

    def start(
        self, node: int, argv: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program, which ends with this process at the latest.

        The name of its host is the node's address, which resolves.
        """
        with log.open("ab") as out:
            process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    "nsenter",
                    f"--net={self._path(node)}",
                    *NAMED,
                    self._hosts,
                    self.address(node),
                    *argv,
                ],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def processes(self, node: int) -> dict[int, str]:
        """Process id -> name of all that runs on a node."""
        inode = self._path(node).stat().st_ino
        return {
            int(entry.name): name
            for entry in Path("/proc").iterdir()
            if (name := _name_within(entry, inode))
        }

    def find(self, name: str) -> tuple[int, int] | None:
        """Node and id of the process of this name; None where there is none."""
        for node in range(1, self.count + 1):
            for pid, found in self.processes(node).items():
                if found == name:
                    return node, pid
        return None

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """SIGKILL to all that runs there. Raises TimeoutError."""
        deadline = time.monotonic() + KILL_SECONDS
        while found := self.processes(node):
            for pid in found:
                send(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"these do not die: {found}")
            time.sleep(0.001)

    def cut(self, node: int) -> None:
        """Take its link down, so that it neither sends nor receives."""
        network.set_link(self._cluster, node, up=False)

    def plug(self, node: int) -> None:
        """Undo `cut`."""
        network.set_link(self._cluster, node, up=True)

    def cut_input(self, node: int) -> None:
        """Drop what is sent to the node; what the node sends still arrives."""
        run(["nsenter", f"--net={self._path(node)}", "nft", DROP_INPUT])

    def freeze(self, node: int) -> None:
        """Stop all that runs there; its sockets stay open."""
        stopped: set[int] = set()
        while new := set(self.processes(node)) - stopped:  # a fork may be under way
            for pid in new:
                send(pid, signal.SIGSTOP)
            stopped |= new

    def _path(self, node: int) -> Path:
        name = (
            network.node_namespace(self._cluster, node)
            if node
            else network.control_plane_namespace(self._cluster)
        )
        return network.NAMESPACES / name


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def last_free_block() -> network.Block:
    """Clusters take theirs from the other end."""
    taken = network.routed_networks()
    free = (network.Block(index) for index in reversed(range(network.BLOCKS)))
    return next(
        block for block in free if not any(block.network.overlaps(other) for other in taken)
    )


def remove_leftovers() -> None:
    """Remove the namespaces of benchmarks that were killed; what ran there has died with them."""
    names = {path.name.split("-")[1] for path in network.NAMESPACES.glob("rg-b*-cp")}
    for name in names:
        if name[1:].isdigit() and not Path("/proc", name[1:]).exists():
            network.remove(name)


def _name_within(entry: Path, inode: int) -> str:
    """The name of a process that is in this network namespace and no zombie; else empty."""
    try:
        if not entry.name.isdigit() or (entry / "ns/net").stat().st_ino != inode:
            return ""
        return (entry / "comm").read_text().strip()
    except OSError:
        return ""
