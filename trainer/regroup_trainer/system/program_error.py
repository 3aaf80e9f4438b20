"""What the error output of a program says: its exception, and whether another try may help. Pure.

It works in images without Regroup too: see `protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import errno
import re

from regroup_trainer.system.volume_errors import PASSING

CRASHES = (4, 6, 8, 11)
"""SIGILL, SIGABRT, SIGFPE and SIGSEGV, by which native code ends a program, in another try too.
SIGBUS may pass: a full /dev/shm sends it.
"""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Python 3.13 and rich colour tracebacks where FORCE_COLOR is set."""
_MARK_OF_TORCH = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch puts before each line of a traceback, once there is a process group."""
_MARGIN_OF_GROUP = re.compile(
    r"^ +(?:\| ?|\+[-+]+(?: [\d.]+ -+)?$|\+ (?=Exception Group Traceback))", re.MULTILINE
)
"""What Python puts before each line of the traceback of an exception group."""
_TRACEBACK = "Traceback (most recent call last):\n"
_CRASH = re.compile(r"^Fatal Python error: [^\n]*", re.MULTILINE)
_LEFT_OUT = "\n[...]\n"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w+(?:Error|Exception|Interrupt|Exit|Fault|Timeout)(?=:|$)")
_NAME = re.compile(rf"{_EXCEPTION.pattern}|(?:\w+\.)+\w+(?=: )")
"""Of an exception, where one is known to stand: google.api_core.exceptions.ServiceUnavailable."""
_CERTAIN = re.compile(r"(?:\w+\.)*(?:SyntaxError|IndentationError|TabError|Import|ModuleNotFound)")
"""Errors that every try shows, if all ranks show them."""
_OF_PROGRAM = frozenset(
    error.__name__
    for error in (
        AttributeError,
        TypeError,
        NameError,
        UnboundLocalError,
        KeyError,
        IndexError,
        SyntaxError,
        IndentationError,
        TabError,
        ZeroDivisionError,
        RecursionError,
        NotImplementedError,
        FileNotFoundError,
        PermissionError,
        IsADirectoryError,
        NotADirectoryError,
    )
)
"""Classes of errors that do not pass, whatever words the program's own names bring into them."""
_PASSING_CLASS = re.compile(
    r"timeout|timedout|connection|connecterror|brokenpipe|gaierror|urlerror|remotedisconnected"
    r"|incompleteread|chunkedencoding|protocolerror|sslerror|toomanyrequests|unavailable"
    r"|^(dist)?networkerror|^diststoreerror|^badgateway",
    re.IGNORECASE,
)
_HTTP_CLASS = re.compile(r"http|client|response|server|status|api", re.IGNORECASE)
_HTTP_CODE = re.compile(r"\b(5\d\d|429)\b")
_PASSING_NUMBERS = PASSING - {errno.EROFS} | {errno.EPIPE}
"""Where a program of its own accord writes to a read-only file system, its path is wrong."""
_PASSING_WORDS = (
    # What Linux says for these numbers.
    "resource temporarily unavailable",
    "software caused connection abort",
    "connection refused",
    "connection reset by peer",
    "disk quota exceeded",
    "host is down",
    "no route to host",
    "input/output error",
    "network is down",
    "network dropped connection on reset",
    "network is unreachable",
    "no such device",
    "no space left on device",
    "transport endpoint is not connected",
    "no such device or address",
    "broken pipe",
    "remote i/o error",
    "cannot send after transport endpoint shutdown",
    "stale file handle",
    "connection timed out",
    # What libraries report.
    "temporary failure in name resolution",
    "connection closed by peer",  # gloo
    "timed out",
    "pytorchstreamwriter failed writing file",  # torch.save, where the disk is full
    "unexpected pos ",  # the same, when it closes the file
    "ncclsystemerror",
    "ncclremoteerror",
)
_OF_COLLECTIVE = re.compile(r"gloo/transport/|ncclRemoteError|ncclSystemError")
"""What gloo and NCCL write of a connection between ranks that broke."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
_ERRNO = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)


def exception_line(text: str) -> str:
    """The first line of the exception that ended a program, by the end of its standard error.

    It is that of the last traceback, whatever follows, or the reason that Python gives for a crash.
    Without either: the last line. Of an exception group it is the last exception in it.
    """
    for noise in (_COLOURS, _MARK_OF_TORCH, _MARGIN_OF_GROUP):
        text = noise.sub("", text)
    text = text.strip()
    if crash := _CRASH.findall(text):
        return str(crash[-1])
    lines = text.rpartition(_TRACEBACK)[2].split("\n")
    if _TRACEBACK in text:
        return next((line for line in lines if line.strip() and line[0] not in " \t"), lines[-1])
    exceptions = (line for line in reversed(lines) if _EXCEPTION.match(line))
    return next(exceptions, lines[-1])


def identity(text: str, exit_code: int) -> str:
    """What makes the error of a program the same in another try: its exception, without numbers."""
    return _NUMBERS.sub("#", exception_line(text)) or f"exit code {exit_code}"


def end_may_pass(text: str) -> bool:
    """Whether what a program wrote to standard error ends with an error that may pass: its
    exception, or its very last line, since it may have handled that exception.
    """
    last = _COLOURS.sub("", text).strip().rpartition("\n")[2]
    return line_may_pass(exception_line(text)) or line_may_pass(last)


def excerpt(text: str, limit: int) -> str:
    """At most `limit` characters of what a program wrote to standard error: its end, or the
    beginning and the end of a last traceback that is longer. Without colours.
    """
    text = _COLOURS.sub("", text)
    trace = text[max(0, text.rfind(_TRACEBACK.strip())) :]
    if len(trace) <= limit or _TRACEBACK.strip() not in trace or limit <= 2 * len(_LEFT_OUT):
        return text[-limit:] if limit > 0 else ""
    head = limit * 2 // 3
    return trace[:head] + _LEFT_OUT + trace[head + len(_LEFT_OUT) - limit :]


def is_certain(line: str) -> bool:
    """Whether every try shows this error, if all ranks show it: one of syntax or import."""
    return _CERTAIN.match(line) is not None and not line_may_pass(line)


def is_of_collective(line: str) -> bool:
    """Whether an error is that of a connection between the ranks of a process group."""
    return _OF_COLLECTIVE.search(line) is not None


def line_may_pass(line: str) -> bool:
    """Whether an error may pass by itself: a full disk, a connection, a server.

    The class of the exception decides, and then the operating system's words for the error. A
    program's own names may contain any word.
    """
    found = _NAME.match(line)
    name = found[0].rpartition(".")[2] if found else ""
    if name in _OF_PROGRAM:
        return False
    if _PASSING_CLASS.search(name) or (_HTTP_CLASS.search(name) and _HTTP_CODE.search(line)):
        return True
    numbers = {int(number) for number in _ERRNO.findall(line)}
    words = line.lower()
    return not numbers.isdisjoint(_PASSING_NUMBERS) or any(w in words for w in _PASSING_WORDS)
