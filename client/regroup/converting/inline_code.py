"""Code in a command (`python -c CODE`, or a script that it writes), as the file of a ConfigMap that
workers mount, because each rank runs a file. Pure.

Linux bounds a word of a command to 128 KiB, so that the code fits into a ConfigMap.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from regroup_operator.api.command_advice import INTERPRETER
from regroup_operator.api.names import JOB

CODE_FOLDER = "/regroup/code"
PROGRAM = "main.py"
VOLUME = "code"
_CODE_FLAG = re.compile(r"-[uq]*c(.*)", re.DOTALL)
_IDLE_FLAG = re.compile(r"-[uq]+")
_REPLACED = re.compile(r"\$(?:\$|\([^()\s]*\))")
"""What Kubernetes replaces in a command: $(NAME), and $$ by a dollar sign."""


class FoundCode(NamedTuple):
    """A command of Python with its code apart."""

    words: list[str]
    """The command that starts the file with the code."""
    code: str


def find_code(words: Sequence[str]) -> FoundCode | None:
    """The code of `python -c CODE ARGUMENTS`; None: the command is another one. Raises ValueError
    for code that cannot be a file.
    """
    if not words or not INTERPRETER.fullmatch(words[0]):
        return None
    rest = list(words[1:])
    while rest and _IDLE_FLAG.fullmatch(rest[0]):
        rest.pop(0)
    flag = _CODE_FLAG.fullmatch(rest[0]) if rest else None
    if flag is None:
        return None
    code, arguments = (flag[1], rest[1:]) if flag[1] else ("".join(rest[1:2]), rest[2:])
    require_file(code, "the code of python -c")
    return FoundCode([words[0], f"{CODE_FOLDER}/{PROGRAM}", *arguments], code)


def require_file(code: str, what: str) -> None:
    """Raises ValueError for the text of a command that would be another one as a file."""
    if not code.strip():
        raise ValueError(f"{what} is empty: write it, or the name of a script")
    if found := _REPLACED.search(code):
        raise ValueError(
            f"{what} has {found[0]} in it, which Kubernetes replaces in a command and not in a "
            "file: read os.environ in the code"
        )
    if "\0" in code or any("\ud800" <= character <= "\udfff" for character in code):
        raise ValueError(f"{what} has characters that no file of Python may have")


def code_name(job: str) -> str:
    """Name of the ConfigMap with the code of a job."""
    return f"{job}-code"


def mount_code(pod: dict[str, Any], container: dict[str, Any], job: str) -> None:
    """Add the ConfigMap of a job to the spec of its pods, and mount it in a container of them."""
    volumes = pod.setdefault("volumes", [])
    taken = {volume.get("name") for volume in volumes}
    others = (f"{VOLUME}-{number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain([VOLUME], others) if name not in taken)
    volumes.append({"name": name, "configMap": {"name": code_name(job)}})
    mount = {"name": name, "mountPath": CODE_FOLDER, "readOnly": True}
    container.setdefault("volumeMounts", []).append(mount)


def code_map(job: Mapping[str, Any], code: str) -> dict[str, Any]:
    """The ConfigMap for a job with these metadata."""
    place = {"namespace": job["namespace"]} if "namespace" in job else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": code_name(job["name"]), **place, "labels": {JOB: job["name"]}},
        "data": {PROGRAM: code if code.endswith("\n") else f"{code}\n"},
    }
