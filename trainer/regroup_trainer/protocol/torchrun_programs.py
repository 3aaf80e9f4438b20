"""Small programs for images that have torch and may not have Regroup, as text for `python -c`.

Each is a module of the product, which tests import as such. Its text comes with that of the modules
of ours that it imports, without comments and docstrings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROGRAM_VARIABLE = "REGROUP_RANK_PROGRAM"
"""Environment variable with the program of a rank under torchrun."""
MESSAGE_VARIABLE = "REGROUP_TERMINATION_LOG"
"""Environment variable with the path of a worker's last message; by default Kubernetes' own."""
RUN_RANK = (
    "-cimport os, sys; sys.path[:] = filter(None, sys.path); "
    f'exec(compile(os.environ["{PROGRAM_VARIABLE}"], "<regroup>", "exec")); watch(sys.argv[1:])'
)
"""What Python gets to run the program: without modules of the working directory, and in one word.
So torchrun calls the rank by its script.
"""
OWN_PART = "\n# what only the rank's own process runs\n"
"""`agent/torchrun_rank.py` has it too, and the variables: it brings no module of this room."""
_HEADER = "from __future__ import annotations\n"
_OWN_PATH = "import sys; sys.path[:] = filter(None, sys.path)"
"""Without modules of the working directory, which may be named as those of Python are."""
_PRODUCT = Path(__file__).parents[1]


@cache
def rank_program() -> str:
    """A rank under torchrun: `agent/torchrun_rank.py`. The processes that a script spawns run the
    part before OWN_PART.
    """
    of_children = _text(
        "system/machine_address.py", "system/rendezvous_check.py", "system/script_children.py"
    )
    own = _text(
        "agent/rank_output.py",
        "system/volume_errors.py",
        "system/program_error.py",
        "system/command_line.py",
        "agent/start_tries.py",
        "agent/torchrun_rank.py",
    )
    return f"{_HEADER}{of_children}{OWN_PART}__file__ = '<regroup>'\n{own}"


@cache
def store_program() -> str:
    """The store where agents of torchrun meet: `rank/torchrun_store.py`."""
    modules = ("errors.py", "protocol/exit_codes.py", "rank/torchrun_store.py")
    return f"{_HEADER}{_OWN_PATH}\n{_text(*modules)}\nserve()"


def _text(*modules: str) -> str:
    body: list[ast.stmt] = []
    for module in modules:
        body += _statements(ast.parse((_PRODUCT / module).read_text()))
    return ast.unparse(ast.Module(body, []))


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """What a module does, without its docstrings and without what the program brings itself."""
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [entry for entry in node.body if not _is_text(entry)] or [ast.Pass()]
    for statement in module.body:
        origin = statement.module if isinstance(statement, ast.ImportFrom) else None
        if origin != "__future__" and not (origin or "").startswith(f"{_PRODUCT.name}."):
            yield statement


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
