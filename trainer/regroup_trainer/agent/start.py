"""Starts one of our modules under the Python of a user's own image: `python start.py MODULE`.

It is run by its path, never imported by other modules. An init container puts this folder there,
with our code and the few packages that it needs, for each version of Python that it knows:

    code/regroup_trainer   this package
    ranks/3.12/...         what a rank needs: google-re2, pydantic, safetensors, xxhash
    agent/3.12/...         what only the agent needs: aiohttp, prometheus_client

A user's script must find the packages of its image. So ranks use those, and ours fill the gaps,
unless the image has versions that are too old. The agent runs no code of the user, and its own
packages come before all others.

This module uses only the standard library, in a syntax that old Pythons understand: it must be able
to report that a Python is not supported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3]
AGENT = "regroup_trainer.agent"
OLDEST = {"google-re2": (1, 1), "pydantic": (2, 10), "safetensors": (0, 5), "xxhash": (3, 5)}
"""Versions that the ranks can work with, as in requirements/injected-ranks.in."""
REQUIRED = ("torch", "numpy")
"""What the image must have."""
WRONG_USAGE = 2
"""As in `protocol.exit_codes`, which cannot be imported before the path is set."""


def main(arguments: list[str]) -> None:
    """Set the path and run the module. Exits with a message when the image cannot run it."""
    module, version = arguments[0], ".".join(str(number) for number in sys.version_info[:2])
    # Python puts the script's folder first, but its modules are no top-level modules.
    own_folder = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != own_folder]
    problem = find_problem(version, known_versions())
    if problem:
        print(f"regroup: {problem}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    sys.path[:] = search_path(sys.path, module, version)
    sys.argv = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def known_versions() -> list[str]:
    """The versions of Python that have packages here."""
    return sorted((path.name for path in (FOLDER / "ranks").iterdir()), key=_numbers)


def find_problem(version: str, known: list[str]) -> str:
    """Why this image's Python cannot run a worker; empty when it can."""
    if version not in known:
        wanted = f"launcher regroup runs under {', '.join(known)}"
        return (
            f"the Python of this image is {version}; {wanted}: use another image, or "
            "spec.launcher: torchrun"
        )
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    return (
        f"{sys.executable} has no {' and no '.join(missing)}: install it in the image"
        if missing
        else ""
    )


def search_path(former: list[str], module: str, version: str) -> list[str]:
    """The search path for `module`."""
    code, ranks, agent = (
        str(FOLDER / part) for part in ("code", f"ranks/{version}", f"agent/{version}")
    )
    if module == AGENT:
        return [code, agent, ranks, *former]
    return [code, *former, ranks] if image_suffices() else [code, ranks, *former]


def image_suffices() -> bool:
    """Whether ranks can use the image's own packages, with ours where it has none."""
    found = {name: _version(name) for name in OLDEST}
    old = [
        name for name, version in found.items() if version is not None and version < OLDEST[name]
    ]
    for name in old:
        print(f"regroup: the image's {name} is too old: ranks use ours", file=sys.stderr)
    # pydantic needs a recent typing_extensions, which an image without pydantic may lack.
    return not old and found["pydantic"] is not None


def _version(distribution: str) -> tuple[int, ...] | None:
    try:
        return _numbers(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version: 2.10.1 is (2, 10, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


if __name__ == "__main__":
    main(sys.argv[1:])
