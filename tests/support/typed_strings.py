"""The strings that a file of tests hands to what types them in a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

TYPISTS = ("type", "try_to_type", "running", "install", "Documented")
"""Methods of PageTerminal; what installs a wheel; and the list of what the walk-through types."""
_CASES = "parametrize"
Values = Mapping[str, list[ast.expr]]
"""Name -> what it may be."""


def typed_strings(source: str) -> frozenset[str]:
    """The strings that are arguments of TYPISTS: as they stand, by a name, out of a sequence, or as
    cases of a test. What a function returns is not followed.
    """
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    constants = _assigned(tree.body)
    found = set(_typed_in(tree.body, constants))
    for function in functions:
        own = {**_assigned(list(ast.walk(function))), **_cases(function)}
        found.update(_typed_in(function.body, {**constants, **own}))
    return frozenset(found)


def _typed_in(body: list[ast.stmt], values: Values) -> Iterator[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _name_of(node.func) in TYPISTS:
                for argument in node.args:
                    yield from _strings(argument, values)


def _strings(node: ast.expr, values: Values) -> Iterator[str]:
    """The strings in an expression, those of its names too."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and part.id in values:
            others = {name: value for name, value in values.items() if name != part.id}
            for value in values[part.id]:
                yield from _strings(value, others)


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> dict[str, list[ast.expr]]:
    """What assignments and loops give to names."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.For):
            targets, value = [node.target], node.iter
        else:
            continue
        for name in (part for target in targets for part in ast.walk(target)):
            if isinstance(name, ast.Name):
                found.setdefault(name.id, []).append(value)
    return found


def _cases(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What the cases of a test give to its arguments."""
    found: dict[str, list[ast.expr]] = {}
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and _name_of(mark.func) == _CASES:
            names, cases = mark.args
            for place, name in enumerate(_names(names)):
                found[name] = [
                    case.elts[place] if isinstance(case, ast.Tuple) else case
                    for case in getattr(cases, "elts", [cases])
                ]
    return found


def _names(node: ast.expr) -> list[str]:
    """Of the arguments of a test: one string, or a tuple of them."""
    parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [part for part in parts if isinstance(part, str)]


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
