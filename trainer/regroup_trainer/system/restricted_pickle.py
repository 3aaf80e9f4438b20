"""Reads pickled records without running code that the file names. Torch-free.

A pickle is a program: it may call whatever it can import. Here every class that it names must be in
a list, and is replaced by a record of what the file says about the object. The caller makes the
real object of that, and checks it. Source: "Restricting Globals" in the documentation of pickle.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Collection
from typing import Any

Global = tuple[str, str]
"""Module and name of what a pickle wants to import."""


class ForbiddenError(pickle.UnpicklingError):
    """The content names something that is no part of such a file."""


class StandIn:
    """What a pickle says of an object: the arguments and the state that would make it."""

    args: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *args: Any) -> StandIn:
        """Keep the arguments, whatever they are."""
        made = super().__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state: Any) -> None:
        """Keep the state. Since every stand-in has this method, a pickle cannot set attributes of
        the class either.
        """
        self.state = state


def read(
    content: bytes | bytearray | memoryview,
    allowed: Collection[Global],
    values: Callable[[str, str], Any] = lambda _module, _name: None,
) -> tuple[Any, dict[Global, type[StandIn]]]:
    """The pickled value with stand-ins for its objects, and the class of stand-ins of each name.

    `values` may give a harmless value for a name, such as a dtype. Raises ForbiddenError for any
    other name, and what pickle raises for content that is damaged.
    """
    classes = {name: type(name[1], (StandIn,), {}) for name in allowed}
    return _Unpickler(content, classes, values).load(), classes


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        content: bytes | bytearray | memoryview,
        classes: dict[Global, type[StandIn]],
        values: Callable[[str, str], Any],
    ) -> None:
        super().__init__(io.BytesIO(content))
        self._classes = classes
        self._values = values

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in or the value of a name."""
        found = self._classes.get((module, name)) or self._values(module, name)
        if found is None:
            raise ForbiddenError(f"it names {module}.{name}, which is no part of such a file")
        return found
