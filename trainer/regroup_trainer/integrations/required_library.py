"""Says in one sentence which library an integration lacks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from regroup_trainer.errors import ConfigurationError


def require(library: str, oldest: str) -> None:
    """Raises ConfigurationError when `library` is missing or older than `oldest`, two numbers such
    as 2.5.
    """
    try:
        found = version(library)
    except PackageNotFoundError:
        found = ""
    if _numbers(found) < _numbers(oldest):
        state = f"{found} is installed" if found else "it is not installed"
        raise ConfigurationError(
            f"this integration needs {library} {oldest} or newer, and {state}: "
            f"pip install '{library}>={oldest}'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
