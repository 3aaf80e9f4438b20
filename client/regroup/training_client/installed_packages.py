"""Whether this Python has what `packages=` of a local job asks for, in a version that it allows."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

from regroup.training_client.client_errors import TrainingClientError
from regroup_trainer.protocol.extras import missing_extra

EXTRA = "client"
_ONLY_A_NAME = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?")


def require_installed(packages: Sequence[str]) -> None:
    """Check each package, written as for pip. A version needs `packaging`, which an extra brings.

    Raises TrainingClientError for the first one that is missing or has another version.
    """
    for package in packages:
        if (problem := _problem(package.strip())) is not None:
            raise TrainingClientError(f"packages: {problem}")


def _problem(package: str) -> str | None:
    if _ONLY_A_NAME.fullmatch(package):
        return None if _installed_version(package) else _not_installed(package)
    if (missing := missing_extra(EXTRA, ("packaging",))) is not None:
        return f"{package}: to compare versions, {missing}"
    return _problem_of_requirement(package)


def _problem_of_requirement(package: str) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(package)
    except InvalidRequirement:
        return f"{package!r} cannot be looked up in this Python: give name and version: 'einops>=1'"
    if wanted.marker is not None and not wanted.marker.evaluate():
        return None  # pip skips it too
    version = _installed_version(wanted.name)
    if version is None:
        return _not_installed(package)
    # As pip judges what is installed: a pre-release may satisfy any specifier.
    if wanted.specifier.contains(version, prereleases=True):
        return None
    return f"{package} is wanted, {wanted.name} {version} is installed, and {_what_to_do(package)}"


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _not_installed(package: str) -> str:
    return f"{package} is not installed, and {_what_to_do(package)}"


def _what_to_do(package: str) -> str:
    return f"a local job uses this Python: type pip install '{package}'"
