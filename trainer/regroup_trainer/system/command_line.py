"""Runs a program in this process as Python's command line would: `python x.py` or `python -m x`.

What a program can see of its process is the same: `__main__`, which holds its classes (also for
pickle, and for processes that it spawns), `sys.argv`, the search path, the traceback of an error,
and what happens at the end (threads, `atexit`).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import runpy
import signal
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a program that SIGTERM has ended, as shells report it."""


class NoScriptError(Exception):
    """There is no such script. The message says where it was looked for."""


def execute(command: Sequence[str]) -> int:
    """Run a program to its last line; returns its exit code.

    `command` is what follows `python`. Raises NoScriptError, and what the program raises, but for
    SystemExit. A library's own kind of SystemExit without a code interrupts the program, whose work
    is not done: Lightning ends so on all ranks when rank 0 gets SIGTERM. Python would return 0.
    """
    try:
        if command[0] == "-m":
            _run_module(command[1], command[2:])
        else:
            _run_file(command[0], command[1:])
    except SystemExit as end:
        if end.code is None and type(end) is not SystemExit:
            return TERMINATED
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF  # as the system keeps it: 256 is 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def shell_code(code: int) -> int:
    """The exit code of a process as shells report it, by that of Python: 137 instead of -9 where a
    signal ended it.
    """
    return code if code >= 0 else 128 - code


def wait_for_threads() -> None:
    """Wait for the threads of a program, as Python does after its last line."""
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls


def end() -> None:
    """What Python does after that: call what the program has registered with `atexit`."""
    with _shown_errors():
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # what the program has put there, also None
            stream.flush()


def show(error: BaseException) -> None:
    """Print an error as Python would, by `sys.excepthook`. The frames above the program's own are
    left out.
    """
    trace, own = error.__traceback__, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in _HERE:
            own = trace.tb_next
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(own), own)


_HERE = frozenset({__file__, runpy.__file__, "<frozen runpy>"})


def _run_module(name: str, arguments: Sequence[str]) -> None:
    """`runpy.run_module` would take `__main__` away after the last line, when threads and `atexit`
    of the program still pickle its classes.
    """
    sys.argv = ["-m", *arguments]
    sys.path.insert(0, str(Path.cwd()))
    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin
    main = _new_main(spec.origin, spec.loader)
    main.update(__spec__=spec, __package__=spec.parent, __cached__=spec.cached)
    exec(code, main)


def _run_file(name: str, arguments: Sequence[str]) -> None:
    path = Path(name).absolute()
    if not path.is_file():
        raise NoScriptError(
            f"template.spec.containers[trainer].command: {name} is no file on this worker (working "
            f"directory {Path.cwd()}): mount it, or give the path where the image has it"
        )
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    main = _new_main(str(path), SourceFileLoader("__main__", str(path)))
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), main)


def _new_main(file: str, loader: object) -> dict[str, Any]:
    """The names of a new `__main__`, which stays until the process ends."""
    main = types.ModuleType("__main__")
    vars(main).update(__file__=file, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    return vars(main)


@contextlib.contextmanager
def _shown_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        show(error)
