"""The table of strategies is complete, and nothing but the builders decides by names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from regroup_trainer.protocol.config import ParallelismConfig
from regroup_trainer.protocol.strategies import STRATEGIES, STRATEGY_OPTIONS, StrategyName

ROOT = Path(__file__).parents[3]
PACKAGES = ("operator/regroup_operator", "trainer/regroup_trainer", "client/regroup")
BUILDERS = {
    "trainer/regroup_trainer/parallel/data_parallel.py",
    "trainer/regroup_trainer/parallel/user_model.py",
}
"""What wraps a model for a strategy has to know which it is."""


def test_every_strategy_of_the_configuration_has_an_entry() -> None:
    assert set(STRATEGIES) == set(get_args(StrategyName))
    assert set(get_args(ParallelismConfig.model_fields["strategy"].annotation)) == set(STRATEGIES)


def test_every_option_of_a_strategy_is_a_field_of_the_configuration() -> None:
    assert set(ParallelismConfig.model_fields) >= STRATEGY_OPTIONS


def test_no_module_but_the_builders_compares_names_of_strategies() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in BUILDERS
        for line in _comparisons(ast.parse(path.read_text()))
    ]
    assert found == []


def _comparisons(tree: ast.AST) -> Iterator[int]:
    """The lines that compare something with the name of a strategy, or match it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue) and any(
            isinstance(part, ast.Constant) and part.value in STRATEGIES for part in ast.walk(node)
        ):
            yield node.lineno
