"""Functions whose text is all of them, and functions that need more."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regroup.training_client.function_source import NotSelfContainedError, program_of

RATE = 0.5
DONE: list[Any] = []


def whole(rate: float, done: list[Any] | None = None, *, words: tuple[str, ...] = ()) -> float:
    """Needs nothing of its module."""
    import math

    def inner(factor: float) -> list[float]:
        return [math.floor(x * factor) for x in (rate, 2 * rate)]

    class Kept:
        total = sum(range(3))

    text = """a
  b"""
    return sum(inner(10)) + Kept.total + len(text) + len(words)


def of_module() -> float:
    return RATE


def of_default(rate: float = RATE) -> float:
    return rate


def countdown(left: int) -> int:
    return countdown(left - 1) if left else 0


def imports_what_its_module_imports() -> str:
    import functools
    import json

    return json.dumps(functools.reduce(max, [1, 2]))


@functools.cache
def cached() -> int:
    return 1


@functools.wraps(whole)
def wrapped() -> int:
    return 1


def loaded(tmp_path: Path, text: str) -> dict[str, Any]:
    """The names of a module with this text, in a file of its own."""
    file = tmp_path / "shadows.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("shadows", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def run(text: str, tmp_path: Path) -> None:
    """Run a program as Python runs a file."""
    file = tmp_path / "main.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("__main__", file)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_program_of_the_text_does_what_the_function_does(tmp_path: Path) -> None:
    def saves(path: str, values: list[Any]) -> None:
        text = f"""{sum(values)}
  and a line that begins with blanks"""
        with open(path, "w") as file:  # noqa: PTH123 - it needs nothing of its module
            file.write(text)

    out = tmp_path / "out"
    run(program_of(saves, {"path": str(out), "values": [1, 2.5]}), tmp_path)
    assert out.read_text() == "3.5\n  and a line that begins with blanks"


@pytest.mark.parametrize(
    "arguments", [{"rate": 1.5}, {"rate": 1, "words": ("a", "b")}, {"rate": -1.0, "done": [{}]}]
)
def test_plain_arguments_are_written_down(arguments: dict[str, Any], tmp_path: Path) -> None:
    text = program_of(whole, arguments)
    assert text.startswith("from __future__ import annotations\n")
    run(text, tmp_path)


def test_a_function_may_call_itself(tmp_path: Path) -> None:
    run(program_of(countdown, {"left": 2}), tmp_path)


def test_a_module_may_import_the_same_besides(tmp_path: Path) -> None:
    """CPython compiles calls of what a module imports in another way."""
    assert json.loads(imports_what_its_module_imports()) == 2
    run(program_of(imports_what_its_module_imports, {}), tmp_path)


def with_decorator(decorate: Callable[..., Any]) -> Callable[..., Any]:
    @decorate
    def train() -> None:
        pass

    return train  # type: ignore[no-any-return]


def with_closure(value: int) -> Callable[[], int]:
    def train() -> int:
        return value

    return train


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (of_module, {}, "it uses RATE of its module"),
        (of_default, {}, "it uses RATE of its module"),
        (with_decorator(lambda f: f), {}, "it uses decorate of its module"),
        (with_closure(1), {}, "it uses value of the function around it"),
        (wrapped, {}, "a decorator has wrapped it"),
        (cached, {}, "only the text of a function by `def` can be sent"),
        (lambda: 1, {}, "only the text of a function by `def` can be sent"),
        (DONE.append, {}, "only the text of a function by `def` can be sent"),
        (whole, {"rate": float("nan")}, "an argument is no plain value"),
        (whole, {"rate": 1, "done": DONE.append}, "an argument is no plain value"),
    ],
)
def test_a_function_that_needs_more(
    function: Callable[..., Any], arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotSelfContainedError) as raised:
        program_of(function, arguments)
    assert str(raised.value) == why


def test_a_file_that_has_changed_since_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def train():\n    return 1\n")
    spec = importlib.util.spec_from_file_location("changing", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file.write_text("def train():\n    return [1][0]\n")
    with pytest.raises(NotSelfContainedError, match="its text is not what runs here"):
        program_of(module.train, {})
    file.unlink()
    with pytest.raises(NotSelfContainedError):
        program_of(module.train, {})


SHADOWS = "from math import prod as sum, pow\nRATE = 1\n__doc__ = 'x'\nkept: int = 1\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def train():\n    return sum([2, 3])", "sum"),
        ("def train(total=sum([2, 3])):\n    return total", "sum"),
        ("def train(*, total=lambda: sum([2, 3])):\n    return total()", "sum"),
        ("def train(total: sum = 1):\n    return total", "sum"),
        ("def train():\n    def inner():\n        return sum([2])\n    return inner()", "sum"),
        ("def train():\n    return [sum([n]) for n in range(3)]", "sum"),
        ("def train():\n    return (lambda: pow(sum([2]), 2))()", "pow, sum"),
        ("def train():\n    class Kept:\n        total = sum([2])\n    return Kept.total", "sum"),
        ("def train():\n    class Kept:\n        sum = sum([2])\n    return Kept.sum", "sum"),
        ("def train():\n    class Kept:\n        RATE += 1\n    return Kept.RATE", "RATE"),
        ("def train():\n    class Kept(sum):\n        pass", "sum"),
        ("def train():\n    global RATE\n    RATE += 1", "RATE"),
        ("def train():\n    global sum\n    sum = sum([2])", "sum"),
        ("def train():\n    return __doc__", "__doc__"),
        ("annotations = 1\ndef train():\n    return annotations", "annotations"),
        ("pow = lambda f: f\n@pow\ndef train():\n    return 1", "pow"),
        ("class A:\n    def abs(self):\n        return abs(self)\ntrain = A.abs", "abs"),
    ],
)
def test_a_builtins_name_that_the_module_gives_another_meaning_is_of_the_module(
    tmp_path: Path, text: str, names: str
) -> None:
    """Else Python's own builtin would run where the text does."""
    train = loaded(tmp_path, SHADOWS + text)["train"]
    with pytest.raises(NotSelfContainedError, match=f"^it uses {names} of its module$"):
        program_of(train, {})


def test_functions_of_numpy_with_names_of_builtins_are_not_left_to_python(tmp_path: Path) -> None:
    text = "from numpy import abs, max, sum\ndef train():\n    return max(abs(sum([[1], [2]])))"
    with pytest.raises(NotSelfContainedError, match="it uses abs, max, sum of its module"):
        program_of(loaded(tmp_path, text)["train"], {})


@pytest.mark.parametrize(
    "text",
    [
        "def train():\n    from math import prod as sum\n    assert sum([2, 3]) == 6",
        "def train():\n    class K:\n        a: int = 1\n        b = a\n    assert K.b == 1",
        "from builtins import open, len\ndef train(words=len('ab')):\n    assert words == 2",
        "def outer():\n  def train(x: int = max(1, 2)):\n    pass\n  return train\ntrain = outer()",
        "def train(left=2):\n    assert left > -1\n    train(left - 1) if left else None",
    ],
)
def test_names_that_mean_the_same_everywhere_are_sent(tmp_path: Path, text: str) -> None:
    run(program_of(loaded(tmp_path, SHADOWS + text)["train"], {}), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "def outer(max):\n  def train(x=max(1, 2)):\n    pass\n  return train\ntrain = outer(min)",
        "class A:\n  max = min\n  def train(x=max(1, 2)):\n    pass\ntrain = A.train",
    ],
)
def test_a_default_of_what_is_around_the_function_is_not_left_to_python(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(NotSelfContainedError, match="use max of what is around it"):
        program_of(loaded(tmp_path, text)["train"], {})


def test_what_a_notebook_puts_in_the_place_of_a_builtin_is_the_builtin(tmp_path: Path) -> None:
    """IPython's own open and exit: an image need not have it."""
    names = loaded(tmp_path, "def train(path):\n    open(path, 'w').close()")
    notebook = compile("def open(file, *args): ...", "<notebook>", "exec")
    exec(notebook, of_notebook := {"__name__": "IPython.core.interactiveshell"})
    names["open"] = of_notebook["open"]
    run(program_of(names["train"], {"path": str(tmp_path / "out")}), tmp_path)
    assert (tmp_path / "out").exists()
    names["open"] = lambda *_: None
    with pytest.raises(NotSelfContainedError, match="it uses open of its module"):
        program_of(names["train"], {})
