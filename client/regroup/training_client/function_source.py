"""A function as the text of a program, where that is all of it.

A function is self-contained when it needs nothing of its module: it imports within itself what it
uses, and its arguments can be written down. Its text runs under any Python that knows its syntax.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import symtable
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType

_FUTURE = "annotations"
_MODULE_NAMES = frozenset(dir(builtins)) | {"__file__", "__name__"}


class NotSelfContainedError(Exception):
    """The text of the function is not all of it. The message says what is missing."""


def program_of(function: Callable[..., object], arguments: Mapping[str, object]) -> str:
    """A program that calls the function. Raises NotSelfContainedError."""
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise NotSelfContainedError("only the text of a function by `def` can be sent")
    if hasattr(function, "__wrapped__"):
        raise NotSelfContainedError("a decorator has wrapped it")
    has_future = bool(function.__code__.co_flags & __future__.annotations.compiler_flag)
    header = f"from __future__ import {_FUTURE}\n\n" if has_future else ""
    text = header + _definition(function)
    _require_no_others(function, text)
    _require_unchanged(function)
    return (
        f"{text}\n\nif __name__ == '__main__':\n    {function.__name__}(**{_written(arguments)})\n"
    )


def _definition(function: FunctionType) -> str:
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        raise NotSelfContainedError("its text cannot be found") from None
    # An indented one stays as it is, since texts within it may span lines.
    return f"if True:\n{text}" if text[:1].isspace() else text


def _require_unchanged(function: FunctionType) -> None:
    """Raises NotSelfContainedError where the file has changed since it was imported.

    All of it is compiled: the code of a function also follows from what its module imports.
    """
    try:
        lines, _ = inspect.findsource(function)
        module = compile("".join(lines), "<file>", "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        raise NotSelfContainedError("the text of its module cannot be read") from None
    if _essence(function.__code__) not in map(_essence, _codes(module)):
        raise NotSelfContainedError("its text is not what runs here: reload its module")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and all that is defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _essence(code: CodeType) -> tuple[object, ...]:
    values = tuple(repr(value) for value in code.co_consts if not isinstance(value, CodeType))
    return (code.co_qualname, code.co_firstlineno, code.co_code, code.co_names, values)


def _require_no_others(function: FunctionType, text: str) -> None:
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise NotSelfContainedError(f"it uses {names} of the function around it")
    try:
        table = symtable.symtable(text, "<function>", "exec")
    except SyntaxError:
        raise NotSelfContainedError("its text is no definition") from None
    others = sorted(set(_module_names(table)) - _MODULE_NAMES - {function.__name__, _FUTURE})
    if others:
        raise NotSelfContainedError(f"it uses {', '.join(others)} of its module")


def _module_names(table: symtable.SymbolTable) -> Iterator[str]:
    """The names of the module that a piece of its text uses."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _module_names(inner)


def _written(arguments: Mapping[str, object]) -> str:
    text = repr(dict(arguments))
    try:
        same = ast.literal_eval(text) == dict(arguments)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        same = False
    if not same:
        raise NotSelfContainedError("an argument is no plain value")
    return text
