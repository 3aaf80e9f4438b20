"""A rank under stock torchrun: a process that starts the script and watches over it.

torchrun runs this in images that may not have Regroup. `protocol/torchrun_programs.py` therefore
ships its text and that of the modules of ours that it imports. They need the standard library of
Python 3.9, and no name stands in two of them.

It marks what the script writes with the rank, says in the worker's last message why the script
failed, and knows whether the script's last line has run. It ends the worker when ranks would wait
for each other in vain.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from regroup_trainer.agent.rank_output import IDLE_SECONDS, Lines, Stream, write
from regroup_trainer.agent.start_tries import ScriptEnd, cannot_start, tries_file
from regroup_trainer.system.command_line import (
    TERMINATED,
    NoScriptError,
    end,
    execute,
    shell_code,
    show,
    wait_for_threads,
)
from regroup_trainer.system.machine_address import is_loopback
from regroup_trainer.system.program_error import excerpt
from regroup_trainer.system.rendezvous_check import RankPlace
from regroup_trainer.system.script_children import WRONG_USAGE, watch_script

PROGRAM_VARIABLE = "REGROUP_RANK_PROGRAM"
MESSAGE_VARIABLE = "REGROUP_TERMINATION_LOG"
DIRECTORY_VARIABLE = "REGROUP_DIRECTORY"
"""These three as in `protocol`, which the images may lack."""
_START = (
    "-cimport os, sys; sys.path[:] = filter(None, sys.path); "
    f'program = os.environ.pop("{PROGRAM_VARIABLE}"); '
    'exec(compile(program, "<regroup>", "exec")); start(sys.argv[1:], program)'
)
OWN_PART = "\n# what only the rank's own process runs\n"
"""In the text of this program: what stands above it is for processes that the script spawns."""
_DIRECTORY_SECONDS = 5.0
"""How long a script waits for its folder."""
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What torchrun sends to the rank's whole process group: the script's to handle."""
_ASKED_TO_END = (-signal.SIGTERM, TERMINATED)
"""How a script ends that was asked to, by the signal or after it has saved."""
_HOSTS_IN_VAIN = b"The server socket has failed to listen"
"""What c10d says when rank 0 cannot host the store of a process group."""
_DONE, _HOPELESS = b".", b"!"
"""What the process of the script reports of its end."""
_NO_OTHER_TRY = "; another try would fail too"
_CANNOT_START = "; it cannot start"
_MESSAGE_BYTES = 4000
"""Kubernetes keeps 4,096 bytes."""


# --- the process that watches ---------------------------------------------------------------------


def watch(command: Sequence[str]) -> NoReturn:
    """Run `python COMMAND` as a child to its end, and end as it does. It is killed when torchrun
    was: a rank that nobody watches would keep its port and its GPU.
    """
    torchrun, begun = os.getppid(), time.monotonic()
    _begin_message()
    _make_directory()
    reading, writing = os.pipe()
    script = subprocess.Popen(
        [sys.executable, "-u", _START, str(writing), str(os.getpid()), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
    )
    os.close(writing)
    for number in _STOPS:
        signal.signal(number, lambda *_: None)
    tail = _pass_on(script, torchrun)
    if os.getppid() != torchrun:
        _end_with(script.returncode)
    os.set_blocking(reading, False)
    news = b""
    with contextlib.suppress(BlockingIOError):
        news = os.read(reading, 1)
    if news == _DONE and script.returncode:
        write(2, f"{_prefix()}{_counts(script.returncode)}\n".encode())
        _end_with(0)
    if news == _HOPELESS:
        _leave_message(f"{_named()} {_how(script.returncode)}{_NO_OTHER_TRY}", tail)
        os.kill(torchrun, signal.SIGTERM)  # it would start all ranks again
    elif script.returncode not in (0, *_ASKED_TO_END):
        sentence = failure(script.returncode, os.environ)
        hopeless = _is_hopeless(script.returncode, tail, time.monotonic() - begun)
        if hopeless:
            sentence += _CANNOT_START
        _leave_message(sentence + advice(tail, os.environ), tail)
        if hopeless:
            os.kill(torchrun, signal.SIGTERM)  # it would start all ranks again
    _end_with(script.returncode)


def _is_hopeless(code: int, tail: bytes, seconds: float) -> bool:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if count is None:
        return False  # nobody starts it again
    ended = ScriptEnd(code, seconds, tail.decode(errors="replace"), count)
    return cannot_start(ended, tries_file(os.getppid()))


def failure(code: int, environment: Mapping[str, str]) -> str:
    """One sentence: which rank failed and how, and whether torchrun starts it again."""
    count, limit = (
        environment.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    gives_up = f"; torchrun gives up after {limit} restarts" if count and count == limit else ""
    return f"rank {environment.get('RANK', '?')} {_how(code)}{gives_up}"


def advice(tail: bytes, environment: Mapping[str, str]) -> str:
    """What to change, when the error looks like two ranks that both take themselves for rank 0.
    Workers on one machine then want the same address.
    """
    several = environment.get("WORLD_SIZE") != environment.get("LOCAL_WORLD_SIZE")
    if not several or _HOSTS_IN_VAIN not in tail:
        return ""
    return (
        " (an address is in use, at which rank 0 lets the others meet: if this script takes "
        'LOCAL_RANK for its rank, write rank=int(os.environ["RANK"]); leave MASTER_ADDR and '
        "MASTER_PORT as they are set)"
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _counts(code: int) -> str:
    return f"{_how(code)} after the script's last line: its work counts"


def _prefix() -> str:
    return f"{_named()}: "


def _named() -> str:
    return f"rank {os.environ.get('RANK', '?')}"


def _pass_on(script: subprocess.Popen[bytes], torchrun: int) -> bytes:
    """Mark and pass on what the script writes, until it ends. It is killed when torchrun is gone.
    Returns the end of its standard error.
    """
    assert script.stdout is not None
    assert script.stderr is not None
    streams = []
    for pipe, target in ((script.stdout, 1), (script.stderr, 2)):
        os.set_blocking(pipe.fileno(), False)
        streams.append(Stream(pipe.fileno(), target, Lines(_prefix().encode)))
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reading = {stream.source: stream for stream in streams}
    while script.poll() is None:
        for source in select.select([woken, *reading], [], [], IDLE_SECONDS)[0]:
            if source == woken:
                os.read(woken, 64)
            elif not reading[source].pump(time.monotonic()):
                del reading[source]
        for stream in streams:
            stream.pass_on_beginning(time.monotonic())
        if os.getppid() != torchrun:
            script.kill()
    for stream in streams:
        stream.drain(time.monotonic())
    return streams[1].tail


def _make_directory() -> None:
    """Make the folder of the job on the volume, where scripts save. A volume that does not answer
    delays the script by a few seconds; it will report itself what it cannot do there.
    """
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        making = threading.Thread(target=_make_folder, args=(Path(directory),), daemon=True)
        making.start()
        making.join(_DIRECTORY_SECONDS)


def _make_folder(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)


def _begin_message() -> None:
    """Forget the failure of an earlier start."""
    if os.environ.get("LOCAL_RANK") == "0":
        with contextlib.suppress(OSError):
            os.truncate(_message_file(), 0)


def _leave_message(sentence: str, tail: bytes) -> None:
    """Say why the worker fails, if no other rank of it has: the others fail because of it."""
    shown = excerpt(tail.decode(errors="replace").strip(), _MESSAGE_BYTES - len(sentence) - 2)
    text = f"{sentence}:\n{shown}".encode()[:_MESSAGE_BYTES]
    with contextlib.suppress(OSError):
        file = _message_file()
        if not file.exists() or file.stat().st_size == 0:
            file.write_bytes(text)


def _message_file() -> Path:
    return Path(os.environ.get(MESSAGE_VARIABLE, "/dev/termination-log"))


def _end_with(code: int) -> NoReturn:
    """End as the script did, by its signal too: torchrun reports it."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(shell_code(code))


# --- the process of the script --------------------------------------------------------------------


def start(arguments: Sequence[str], program: str) -> NoReturn:
    """Be the script: `arguments` are the descriptor for the news of its last line, the parent, and
    what follows `python`. `program` is the text of this program.
    """
    descriptor, parent, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    _die_with(parent)
    pipe = NewsPipe(descriptor)
    of_children = program.partition(OWN_PART)[0]
    report_hopeless = partial(pipe.send, _HOPELESS)
    watch_script(place_in(os.environ), HopelessError, of_children, before_end=report_hopeless)
    try:
        code = execute(command)
    except HopelessError as error:
        print(f"ConfigurationError: {error}", file=sys.stderr)
        pipe.send(_HOPELESS)
        os._exit(WRONG_USAGE)
    except NoScriptError as error:
        print(error, file=sys.stderr)
        os._exit(WRONG_USAGE)
    except BaseException as error:
        show(error)
        code = 1
    wait_for_threads()
    if not code:
        pipe.send(_DONE)
    end()
    os._exit(code & 0xFF)


class NewsPipe:
    """Where the process of the script reports how it ends. Processes that it forks report nothing,
    and nothing is written when a script has closed the pipe and opened something else in its place.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()
        self._identity = os.fstat(descriptor)[:3]

    def send(self, news: bytes) -> None:
        """Write it, if this is possible."""
        if os.getpid() != self._process:
            return
        with contextlib.suppress(OSError):
            if os.fstat(self._descriptor)[:3] == self._identity:
                os.write(self._descriptor, news)


def place_in(environment: Mapping[str, str]) -> RankPlace:
    """The place of this rank by torchrun's variables."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    rank, size, local_rank, local_size, workers = (int(environment.get(n, "1")) for n in names)
    hosts = 1 if is_loopback(environment.get("MASTER_ADDR", "")) else workers
    return RankPlace(rank, size, local_rank, local_size, hosts)


class HopelessError(Exception):
    """The ranks would wait for each other in vain, and in another try again."""


def _die_with(parent: int) -> None:
    """End when the parent is killed, where the system can do that."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
