"""The checks of a script's rendezvous, in the rank's process and in those that the script starts by
multiprocessing.

A refused rank raises an error. A refused child would end alone, while the script waits for its
other children. So a child ends the script. It works in images without Regroup too: see
`protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from regroup_trainer.system.rendezvous_check import (
    RankPlace,
    refuse_spawn,
    watch_groups,
    watch_rendezvous,
)

WRONG_USAGE = 2
"""As in `protocol.exit_codes`, which this room cannot import."""
_SIGNAL = signal.SIGRTMAX - 1
"""Sent by a refused child. SIGRTMAX asks for stacks."""
_INHERITED = "regroup"
"""The entry of what multiprocessing hands on to each child."""
_LOAD = """
try:
    exec(program, globals())
    watch = watch_child(*fields)
except Exception:
    watch = None
"""
"""Runs in a spawned child, which goes on without checks where they cannot be made."""
_ADVICE = (
    "in a process that the script has started: the job starts the ranks, so call the function "
    "itself once, with RANK and WORLD_SIZE of the environment"
)


@dataclass(frozen=True)
class ScriptChildren:
    """What a process that a script starts has to know of the rank. Its pickle makes the checks
    where it is loaded: multiprocessing sends it to each process that it does not fork.
    """

    process: int
    """The id of the rank's own process."""
    place: RankPlace
    program: str
    """Python text that defines `watch_child`."""

    def end_script(self, message: str) -> NoReturn:
        """End this process and the script, as a ConfigurationError would."""
        os.write(2, f"ConfigurationError: {message}\n".encode())
        if os.getpid() != self.process and _is_below(self.process):
            os.kill(self.process, _SIGNAL)
        os._exit(WRONG_USAGE)

    def refuse(self, problem: str) -> NoReturn:
        """End the script because of a child: for it, only the fact of a problem is right, and not
        what a rank would have to change.
        """
        self.end_script(f"{problem.partition(': ')[0]}, {_ADVICE}")

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.process, astuple(self.place), self.program)
        names = {"program": self.program, "fields": fields}
        return eval, (f"exec({_LOAD!r}, globals()) or watch", names)


def watch_script(
    place: RankPlace,
    error: type[Exception],
    program: str,
    meet: Callable[[int], None] = lambda _port: None,
    before_end: Callable[[], None] = lambda: None,
) -> ScriptChildren:
    """From now on a rendezvous of this rank that cannot succeed raises `error`, and one of a child
    calls `before_end` here, in the main thread, and ends this process and its group.

    `program` defines `watch_child`; `meet` is called with the port before all ranks meet at one.
    """
    children = ScriptChildren(os.getpid(), place, program)

    def refuse(problem: str) -> Exception:
        return error(problem) if os.getpid() == children.process else children.refuse(problem)

    def end(*_: object) -> NoReturn:
        before_end()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)  # the other children, also one that is just being started
        os._exit(WRONG_USAGE)

    _check(place, refuse, meet)
    signal.signal(_SIGNAL, end)
    vars(multiprocessing.current_process())["_config"][_INHERITED] = children
    return children


def watch_child(process: int, place: tuple[Any, ...], program: str) -> ScriptChildren:
    """Make the checks in a child that was not forked; returns what its own children get."""
    children = ScriptChildren(process, RankPlace(*place), program)
    _check(children.place, children.refuse, lambda _port: None)
    return children


def _check(
    place: RankPlace, refuse: Callable[[str], Exception], meet: Callable[[int], None]
) -> None:
    checks = {
        "torch.distributed.rendezvous": partial(watch_rendezvous, place, refuse, meet),
        "torch.distributed.distributed_c10d": partial(watch_groups, place, refuse),
        "torch.multiprocessing": partial(refuse_spawn, place, refuse),
    }
    for name, check in checks.items():
        if name in sys.modules:
            check()
        else:
            sys.meta_path.insert(0, AfterImport(name, check))


class AfterImport:
    """A finder of modules that calls `then` once, after the import of a module."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """What importlib asks: None, except for the module that is waited for. A program may ask,
        too, without an import.
        """
        if name != self._name:
            return None
        finders: list[Any] = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        spec = next(filter(None, (f.find_spec(name, path, target) for f in finders)), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._import, spec.loader.exec_module)
        return spec

    def _import(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        with contextlib.suppress(ValueError):  # another thread was quicker
            sys.meta_path.remove(self)
        with contextlib.suppress(Exception):  # another version of torch
            self._then()


def _is_below(process: int) -> bool:
    """Whether a process is above this one still: its number may be another's by now."""
    above = os.getppid()
    while above not in (0, 1, process):
        above = _parent(above)
    return above == process


def _parent(process: int) -> int:
    """0 for none."""
    try:
        with open(f"/proc/{process}/stat") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
