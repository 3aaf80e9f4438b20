"""A function as the text of a program, where that is all of it.

A function is self-contained when it needs nothing of its module: it imports within itself what it
uses, and its arguments can be written down. Its text runs under any Python that knows its syntax.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from types import CodeType, FunctionType

_FUTURE = "annotations"
_OF_EACH_PROGRAM = frozenset({"__file__", "__name__", "__annotations__"})
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
"""Instructions that may read a name of the module. In a class body they read its own, too."""
_STORES = frozenset({"STORE_NAME"})


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
    code = _compiled(text)
    _require_no_others(function, code)
    _require_unchanged(function, code)
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


def _compiled(text: str) -> CodeType:
    try:
        return compile(text, "<function>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        raise NotSelfContainedError("its text is no definition") from None


def _require_unchanged(function: FunctionType, text: CodeType) -> None:
    """Raises NotSelfContainedError where the file has changed since it was imported, or where the
    line of its `def` uses a name of a function or class around it.

    All of it is compiled: the code of a function also follows from what its module imports.
    """
    try:
        lines, _ = inspect.findsource(function)
        module = compile("".join(lines), "<file>", "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        raise NotSelfContainedError("the text of its module cannot be read") from None
    own = _essence(function.__code__)
    around = [code for code in _codes(module) if own in map(_essence, _codes(code))]
    if not around:
        raise NotSelfContainedError("its text is not what runs here: reload its module")
    bound = {name for code in around[1:-1] for name in _bound(code)}
    if taken := sorted(bound & set(_loaded(text))):
        raise NotSelfContainedError(
            f"its defaults, decorators or annotations use {', '.join(taken)} of what is around it"
        )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and all that is defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _bound(code: CodeType) -> set[str]:
    """The names that a function or a class body gives a value, or has of a function around it."""
    return {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *_named(code, _STORES)}


def _loaded(code: CodeType) -> Iterator[str]:
    return _named(code, _LOADS)


def _named(code: CodeType, instructions: Set[str]) -> Iterator[str]:
    found = dis.get_instructions(code)
    return (str(one.argval) for one in found if one.opname in instructions)


def _essence(code: CodeType) -> tuple[object, ...]:
    values = tuple(repr(value) for value in code.co_consts if not isinstance(value, CodeType))
    return (code.co_qualname, code.co_firstlineno, code.co_code, code.co_names, values)


def _require_no_others(function: FunctionType, text: CodeType) -> None:
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise NotSelfContainedError(f"it uses {names} of the function around it")
    _, *inner = _codes(text)
    own = {name for code in inner for name in _named(code, _STORES)}
    used = {name for code in _codes(text) for name in _loaded(code)} - _OF_EACH_PROGRAM
    others = sorted(name for name in used if not _is_at_hand(name, function, own))
    if others:
        raise NotSelfContainedError(f"it uses {', '.join(others)} of its module")


def _is_at_hand(name: str, function: FunctionType, own: Set[str]) -> bool:
    """Whether the text alone gives the name what it is here. `own`: names of its class bodies."""
    if name == function.__name__:
        return function.__globals__.get(name) is function
    if name in function.__globals__:
        held = function.__globals__[name]
        return held is getattr(builtins, name, function) or _is_of_notebook(held)
    return hasattr(builtins, name) or name in own


def _is_of_notebook(value: object) -> bool:
    """Whether IPython has put it in the place of a builtin, as it does with open and exit."""
    if isinstance(value, FunctionType):  # what wraps open calls itself open of io
        return str(value.__globals__.get("__name__")).startswith("IPython.")
    return type(value).__module__.startswith("IPython.")


def _written(arguments: Mapping[str, object]) -> str:
    text = repr(dict(arguments))
    try:
        same = ast.literal_eval(text) == dict(arguments)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        same = False
    if not same:
        raise NotSelfContainedError("an argument is no plain value")
    return text
