"""The texts that run in images without Regroup bring everything that they name."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from regroup_trainer.agent import torchrun_rank
from regroup_trainer.protocol import environment, torchrun_programs
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.torchrun_programs import OWN_PART, rank_program, store_program

each_program = pytest.mark.parametrize("program", [rank_program, store_program])
OF_MODULES = {"__annotations__", "__file__", "__name__"}


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A table of names and all those within it."""
    yield table
    for child in table.get_children():
        yield from tables(child)


@each_program
def test_every_global_name_is_defined_in_the_text(program: Callable[[], str]) -> None:
    module = symtable.symtable(program(), "<regroup>", "exec")
    defined = {one.get_name() for one in module.get_symbols() if one.is_assigned()}
    defined |= {one.get_name() for one in module.get_symbols() if one.is_imported()}
    used = {
        one.get_name()
        for table in tables(module)
        for one in table.get_symbols()
        if one.is_referenced() and (one.is_global() or table is module)
    }
    assert used - defined - set(dir(builtins)) - OF_MODULES == set()


@each_program
def test_no_name_stands_in_two_of_the_modules(program: Callable[[], str]) -> None:
    names = Counter(
        name for statement in ast.parse(program()).body for name in defined_by(statement)
    )
    assert [name for name, count in names.items() if count > 1] == []


def defined_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module gives a value. What is imported is the same twice."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        nodes = (node for target in targets for node in ast.walk(target))
        yield from (node.id for node in nodes if isinstance(node, ast.Name))


@each_program
def test_python_39_reads_it_and_nothing_of_ours_is_imported(program: Callable[[], str]) -> None:
    text = program()
    ast.parse(text, feature_version=(3, 9))
    assert not re.search(r"\b(from|import) regroup", text)


def test_a_spawned_process_of_a_script_gets_the_part_above_the_ranks_own() -> None:
    of_children, mark, own = rank_program().partition(OWN_PART)
    assert mark
    assert "def watch_child(" in of_children
    assert "def start(" in own


def test_the_rank_knows_the_marks_and_variables_of_those_who_start_it() -> None:
    for name in ("OWN_PART", "PROGRAM_VARIABLE", "MESSAGE_VARIABLE"):
        assert getattr(torchrun_rank, name) == getattr(torchrun_programs, name)
    assert torchrun_rank.DIRECTORY_VARIABLE == environment.DIRECTORY_VARIABLE
    assert AgentEnvironment.variable("termination_log") == torchrun_programs.MESSAGE_VARIABLE
