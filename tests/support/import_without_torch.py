"""A program: imports every module of its arguments while torch and numpy cannot be imported.

An argument is a package, whose modules are all imported, or one module. A leading `-` names a
module that is left out. Prints the number of modules.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORBIDDEN = ("torch", "numpy")


class Refuse(MetaPathFinder):
    """Raises ImportError for the forbidden packages, as if they were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ImportError for a forbidden name; leaves all others to the next finder."""
        if fullname.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{fullname} is forbidden here")
        return None


def names_in(package: str) -> Iterator[str]:
    """A module and, if it is a package, all modules below it."""
    module = importlib.import_module(package)
    yield package
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}."):
        yield info.name


def main(arguments: list[str]) -> None:
    """Import them all."""
    sys.meta_path.insert(0, Refuse())
    left_out = {argument[1:] for argument in arguments if argument.startswith("-")}
    imported = 0
    for package in [argument for argument in arguments if not argument.startswith("-")]:
        for name in names_in(package):
            if name not in left_out:
                importlib.import_module(name)
                imported += 1
    print(imported)


if __name__ == "__main__":
    main(sys.argv[1:])
