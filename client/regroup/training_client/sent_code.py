"""The code that a job runs: a function as text or pickled, or a script; and its size."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regroup.training_client.client_errors import CodeError
from regroup.training_client.function_source import NotSelfContainedError, program_of
from regroup.training_client.image_python import mismatch
from regroup.training_client.pickled_function import files_of

CODE_LIMIT = 900 * 1024
"""Bytes. A ConfigMap may have 1 MiB in all."""
MAIN = "main.py"
_KEY = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,100}")
"""Names of files that a ConfigMap may have, and that a shell shows as they are."""
_RUN_LATER = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
How = Literal["source", "cloudpickle", "script"]


@dataclass(frozen=True)
class SentCode:
    """Files that lie in one folder where the job runs, and how to start them."""

    how: How
    explanation: str
    """One sentence for people: in which form, and why."""
    files: Mapping[str, bytes]
    program: str
    """Which of them is started."""
    arguments: tuple[str, ...] = ()
    python: str = ""
    """The only minor version of Python that can read them; empty: any."""

    def require_config_map(self) -> None:
        """Raises CodeError where a ConfigMap cannot hold the files."""
        size = sum(map(len, self.files.values()))
        if size > CODE_LIMIT:
            raise CodeError(
                f"the {'script' if self.how == 'script' else 'function'} has {size:,} bytes as it "
                f"is sent, and at most {CODE_LIMIT:,} are possible: read data and weights from the "
                "volume or from storage, or put the code into an image and name it with image="
            )

    @property
    def digest(self) -> str:
        """Of all that is sent; the same for the same content."""
        content = hashlib.sha256(repr((self.program, self.arguments)).encode())
        for name, data in sorted(self.files.items()):
            content.update(f"\0{name}\0{len(data)}\0".encode() + data)
        return content.hexdigest()[:16]

    def write_to(self, folder: Path) -> None:
        """Write the files into a folder, which is made. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)

    def command(self, folder: str) -> list[str]:
        """The words that start the program, where its files lie in this folder."""
        return ["python", f"{folder}/{self.program}", *self.arguments]


def code_of_function(
    function: Callable[..., object],
    arguments: Mapping[str, object],
    image: str | None,
    python: str | None,
) -> SentCode:
    """The function as text where that is all of it, else pickled. `python`: minor version of the
    image, if it is known. Raises CodeError.
    """
    if not callable(function):
        raise CodeError(f"func: {function!r} cannot be called: give a function")
    name = getattr(function, "__name__", type(function).__name__)
    if any(runs_later(function) for runs_later in _RUN_LATER):
        raise CodeError(
            f"func: a call of {name} does not run its body, since it is async or yields: give a "
            "plain function, which may call asyncio.run()"
        )
    _require_fitting(name, function, arguments)
    try:
        text = program_of(function, arguments)
    except NotSelfContainedError as error:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if problem := mismatch(here, python, image):
            raise CodeError(f"func: {name} must be pickled, since {error}. {problem}") from None
        explanation = f"function {name} is sent by cloudpickle for Python {here}, since {error}"
        files = files_of(function, arguments)
        return SentCode("cloudpickle", explanation, files, MAIN, python=here)
    explanation = f"function {name} is sent as source: it is self-contained"
    return SentCode("source", explanation, {MAIN: text.encode()}, MAIN)


def _require_fitting(
    name: str, function: Callable[..., object], arguments: Mapping[str, object]
) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise CodeError(f"func_args: do not fit {name}: {error}") from None
    except ValueError:  # of a built-in function without a signature
        return


def code_of_script(path: Path, arguments: Sequence[str]) -> SentCode:
    """One file with its arguments. Raises CodeError."""
    if path.suffix != ".py":
        raise CodeError(f"script: {path} is no Python script: give a file that ends in .py")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CodeError(f"script: {path}: {error.strerror}: give a file that can be read") from None
    explanation = f"script {path.name} is sent as it is, without files beside it"
    name = path.name if _KEY.fullmatch(path.name) else MAIN
    return SentCode("script", explanation, {name: content}, name, tuple(map(str, arguments)))
