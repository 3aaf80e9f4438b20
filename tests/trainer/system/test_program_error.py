"""What the end of a program's standard error says of its end."""

from __future__ import annotations

import errno
import os
import traceback

import pytest

from regroup_trainer.system.program_error import (
    end_may_pass,
    exception_line,
    excerpt,
    identity,
    is_certain,
    is_of_collective,
    line_may_pass,
)
from regroup_trainer.system.volume_errors import PASSING

FRAMES = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    import mine\n'


def test_the_exception_is_found_whatever_surrounds_it() -> None:
    error = "ModuleNotFoundError: No module named 'mine'"
    assert exception_line(FRAMES + error) == error
    assert exception_line(f"a line\n{FRAMES}{error}\nof atexit: goodbye\n") == error
    of_torch = "".join(f"[rank0]: {line}\n" for line in (FRAMES + error).split("\n"))
    assert exception_line(f"{of_torch}[rank0]:[W1124 c.cpp:1] Warning: no destroy") == error
    assert exception_line(f"{FRAMES}KeyError: 'a'\n\nDuring ...\n\n{FRAMES}{error}\n") == error
    assert exception_line(f"{FRAMES}RuntimeError: first line\nsecond line") == (
        "RuntimeError: first line"
    )
    assert exception_line('  File "x.py", line 1\n    x =\nSyntaxError: invalid\nbye') == (
        "SyntaxError: invalid"
    )


def test_a_coloured_traceback_is_read_and_shown_without_its_colours() -> None:
    name, text = "requests.exceptions.ConnectionError", "no route"
    coloured = f"{FRAMES}\x1b[1;35m{name}\x1b[0m: \x1b[35m{text}\x1b[0m\n"
    assert exception_line(coloured) == f"{name}: {text}"
    assert end_may_pass(coloured)
    assert excerpt(coloured, 1000) == f"{FRAMES}{name}: {text}\n"


def in_groups(*errors: Exception) -> str:
    """What Python prints of errors that were raised in a group within a group."""
    for error in errors:
        try:
            raise error
        except Exception:  # it has a traceback now
            pass
    group = ExceptionGroup("of tasks", [ExceptionGroup("of downloads", errors)])
    return "".join(traceback.format_exception(group))


def test_an_exception_group_is_what_is_in_it() -> None:
    lost = in_groups(KeyError("a"), ConnectionResetError(104, "reset"))
    assert exception_line(lost) == "ConnectionResetError: [Errno 104] reset"
    assert end_may_pass(lost)
    one, other = in_groups(ValueError("no data")), in_groups(KeyError("lr"))
    assert identity(one, 1) != identity(other, 1)
    of_torch = "".join(f"[rank1]: {line}\n" for line in one.split("\n"))
    assert exception_line(of_torch) == exception_line(one) == "ValueError: no data"


def test_a_crash_is_named_by_its_signal() -> None:
    text = "Fatal Python error: Segmentation fault\n\nCurrent thread:\n  File ...\n"
    assert exception_line(f"{text}Extension modules: numpy, torch (total: 27)\n") == (
        "Fatal Python error: Segmentation fault"
    )


def test_a_long_message_leaves_type_and_place_of_its_error_in_the_excerpt() -> None:
    error = f"RuntimeError: begins {'x' * 6000} and ends"
    found = excerpt("a" * 9000 + "\n" + FRAMES + error, 1000)
    assert found.startswith(FRAMES + "RuntimeError: begins")
    assert found.endswith("x and ends")
    assert len(found) == 1000
    assert excerpt("a" * 9000 + "end", 10) == "aaaaaaaend"
    assert excerpt("before\n" + FRAMES + "E: 1", 1000) == "before\n" + FRAMES + "E: 1"
    assert excerpt(FRAMES, 3) == FRAMES[-3:]


def test_without_an_exception_it_is_the_last_line() -> None:
    assert exception_line("starting\nno data in /data\n") == "no data in /data"
    assert exception_line("") == ""
    assert exception_line("Traceback (most recent call last):\n  File cut") == "  File cut"


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 5] Input/output error: 'data'",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 107] Transport endpoint is not connected: '/data/a'",
        "TimeoutError: [Errno 110] Connection timed out",
        "RuntimeError: PytorchStreamWriter failed writing file data/7: file write failed",
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
        "safetensors_rust.SafetensorError: I/O error: No space left on device (os error 28)",
        "requests.exceptions.ConnectionError: ...",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub'): Read timed out.",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
        "huggingface_hub.errors.HfHubHTTPError: 502 Server Error: Bad Gateway",
        "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage: try later",
        "google.api_core.exceptions.TooManyRequests: 429 POST https://storage",
        "google.api_core.exceptions.BadGateway: 502 GET https://storage",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:1] Connection closed by peer [10.0.0.1]:9",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms",
        "ImportError: /mnt/x.so: cannot open shared object file: Stale file handle",
    ],
)
def test_errors_that_may_pass(line: str) -> None:
    assert line_may_pass(line)
    assert not is_certain(line)


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: 'NeuralNetwork' object has no attribute 'layers'",
        "TypeError: f() got an unexpected keyword argument 'connection timed out'",
        "TypeError: connect() got an unexpected keyword argument 'timeout'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/network/a.csv'",
        "OSError: [Errno 98] Address already in use",
        "OSError: [Errno 30] Read-only file system: '/app/out'",
        "KeyError: 'connection timed out'",
        "RuntimeError: Missing key(s) in state_dict: network.0.weight, broken_pipe.bias",
        "ValueError: invalid literal for int() with base 10: '502'",
        "mine.NeuralNetworkError: no layers",
        "train.py: error: unrecognized arguments: --timeout 5",
    ],
)
def test_errors_of_the_program_do_not_pass(line: str) -> None:
    assert not line_may_pass(line)


@pytest.mark.parametrize("number", sorted(PASSING - {errno.EROFS}))
def test_what_may_pass_on_a_volume_may_pass_in_a_program(number: int) -> None:
    assert line_may_pass(f"OSError: [Errno {number}] ...")
    assert line_may_pass(f"RuntimeError: read: {os.strerror(number)}")


def test_errors_of_syntax_and_import_are_certain() -> None:
    assert is_certain("ModuleNotFoundError: No module named 'mine'")
    assert is_certain("ImportError: cannot import name 'a' from 'network'")
    assert is_certain("SyntaxError: invalid syntax")
    assert not is_certain("KeyError: 'ImportError'")


@pytest.mark.parametrize(
    ("line", "is_of_ranks"),
    [
        ("RuntimeError: [/x/gloo/transport/tcp/pair.cc:5] Read error: Connection reset", True),
        ("torch.distributed.DistBackendError: NCCL error ... ncclRemoteError: A call failed", True),
        ("torch.distributed.DistBackendError: ncclInvalidUsage: ranks on one GPU", False),
        ("torch.distributed.DistNetworkError: The client socket has timed out", False),
        ("RuntimeError: the server said: Connection closed by peer", False),
    ],
)
def test_errors_of_connections_between_ranks(line: str, is_of_ranks: bool) -> None:
    assert is_of_collective(line) is is_of_ranks
