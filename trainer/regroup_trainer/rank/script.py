"""Runs a user's program as a rank, in a process that has imported torch already.

A program that uses `Session` is a full member of its generation. Any other program finds the
environment that torchrun gives (RANK, WORLD_SIZE, MASTER_ADDR, ...) and is started again in every
generation. It saves and loads its state by itself.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore, TCPStore

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel.process_group import interface_towards
from regroup_trainer.protocol.addresses import DIRECTORY_VARIABLE
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import launch
from regroup_trainer.rank.launch import Launch

_STORE_TIMEOUT = timedelta(seconds=60)
_PORT_KEY = "master_port"


def run(assignment: Assignment, channel: Channel) -> int:
    """Run the program to its end; returns its exit code.

    Raises ConfigurationError, and whatever the program raises.
    """
    here = Launch(assignment, channel)
    launch.announce(here)
    os.environ.update(environment(assignment))
    code = _exit_code(assignment.record.desired.script)
    if code == 0 and here.finish is not None:
        here.finish()
    elif code == 0:
        here.report_end("completed")
    return code


def environment(assignment: Assignment) -> dict[str, str]:
    """The variables that torchrun would set for this rank. Raises c10d's errors when the other
    ranks do not come.
    """
    record = assignment.record
    place = assignment.place
    host, port = record.store.rsplit(":", 1)
    return {
        "RANK": str(assignment.rank),
        "LOCAL_RANK": str(assignment.local_rank),
        "WORLD_SIZE": str(record.world_size),
        "LOCAL_WORLD_SIZE": str(place.ranks),
        "GROUP_RANK": str(record.members.index(place)),
        "GROUP_WORLD_SIZE": str(len(record.members)),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(_agree_on_port(assignment, host, int(port))),
        "TORCHELASTIC_RUN_ID": record.desired.job,
        DIRECTORY_VARIABLE: record.desired.directory,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME") or interface_towards(host),
    }


def _agree_on_port(assignment: Assignment, host: str, port: int) -> int:
    """A free port of rank 0, for the program's own store. The generation's store would still hold
    keys of older generations.

    Where states live on in ranks, all programs use a Session and need no port: any will do.
    """
    if assignment.record.restored_from == "Peers":
        return port
    store = PrefixStore(
        f"{assignment.record.number}/script", TCPStore(host, port, None, False, _STORE_TIMEOUT)
    )
    if assignment.rank == 0:
        with socket.socket() as probe:
            probe.bind((host, 0))
            store.set(_PORT_KEY, str(probe.getsockname()[1]))
    return int(store.get(_PORT_KEY))


def _exit_code(command: tuple[str, ...]) -> int:
    try:
        _execute(command)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _execute(command: tuple[str, ...]) -> None:
    if command[0] == "-m":
        _, module, *arguments = command
        sys.argv = [module, *arguments]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    path = Path(command[0])
    if not path.is_file():
        raise ConfigurationError(
            f"template.spec.containers[trainer].command: {path} is no file on this worker (working "
            "directory "
            f"{Path.cwd()}): mount it, or give the path where the image has it"
        )
    sys.argv = list(command)
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(str(path), run_name="__main__")
