"""Computes what a shell script has in `$((...))`: whole numbers and known variables. Pure."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_NAME = re.compile(r"\$?([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,17}|0")
_COMPUTED = re.compile(r"[0-9 +*/%()-]{1,200}")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def compute(expression: str, variables: Mapping[str, str], used: set[str]) -> int | None:
    """The value of an expression; None where it has an unknown variable, anything else than numbers
    and these operators, or a value below 0, which a shell divides otherwise. The variables that it
    names are added to `used`.
    """

    def number(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        used.add(name)
        value = variables.get(name, "")
        return value if _NUMBER.fullmatch(value) else "?"

    text = _NAME.sub(number, expression).strip()
    if not _COMPUTED.fullmatch(text):
        return None
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    """Raises ValueError for what a shell writes otherwise, or computes otherwise."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    apply = _OPERATORS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if apply is None or not isinstance(node, ast.BinOp):
        raise ValueError("no such operator")
    value = apply(_value(node.left), _value(node.right))
    if value < 0:
        raise ValueError("below 0")
    return value
