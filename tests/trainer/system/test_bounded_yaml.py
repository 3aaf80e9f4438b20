"""YAML that somebody wrote is read in bounded time, and raises nothing but yaml.YAMLError."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.system.bounded_yaml import BoundedLoader, explain


def read(text: str) -> Any:
    return yaml.load(text, BoundedLoader)


def bomb(first: str, line: str, times: int = 9) -> str:
    """Each line names the one above many times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {line.format(', '.join([f'*a{i - 1}'] * times))}" for i in range(1, 30)]
    return "\n".join(lines)


def test_names_and_merges_are_read_as_ever() -> None:
    text = "a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: [*a, *a]\nd: {<<: *a, <<: {z: 1}}\n"
    assert read(text) == yaml.safe_load(text)


def test_a_value_may_be_named_often() -> None:
    text = "a: &a [1, 2, 3]\nb: [" + ", ".join(["*a"] * 1000) + "]"
    assert len(read(text)["b"]) == 1000


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (bomb("[x, x]", "[{}]"), 5, "more than 20000 values (*a counts as what it names)"),
        (bomb("{k: v}", "{{<<: [{}]}}"), 5, "more than 20000 values"),
        (bomb("[x]", "[{}]", times=1) + "\n---\n" + bomb("[x, x]", "[{}]"), 36, "more than 2000"),
        ("a: [" + "1, " * 20_001 + "]", 1, "more than 20000 values"),
        ("\n" + "[" * 50_000, 2, "more than 100 levels"),
        ("{a: " * 20_000, 1, "more than 100 levels"),
        ("".join(" " * level + "a:\n" for level in range(350)), 100, "more than 100 levels"),
        (
            "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60,
            2,
            "more than 100 levels",
        ),
        ("a: 1\nb: &b [*b]", 2, "*b stands in what it names"),
        ("&a\n<<: *a\nb: c", 2, "*a stands in what it names"),
        ("a: 1\nb: 2\na: 3", 3, "the key 'a' stands twice"),
        ("a: " + "9" * 5000, 1, "a value is no int: correct it"),
        ("a: 0x" + "f" * 5000, 1, "a value is no int"),
        ("a: 1" + ":1" * 300_000, 1, "a value is no int"),
        ("a: !!int ''", 1, "a value is no int"),
        ("a: !!bool abc", 1, "a value is no bool"),
        ("a: !!timestamp abc", 1, "a value is no timestamp"),
        ("a: 2001-99-99", 1, "a value is no timestamp"),
        ("a: !!float abc", 1, "a value is no float"),
        ("a: !!python/name:os.system", 1, "could not determine a constructor"),
        ("[a]: b", 1, "unhashable key"),
        ("a: \0", 1, "special characters are not allowed at character 4"),
        ("a: *b", 1, "found undefined alias"),
    ],
)
def test_what_is_refused_is_refused_at_once_with_its_line(text: str, line: int, words: str) -> None:
    begun = time.process_time()
    with pytest.raises(yaml.YAMLError) as caught:
        list(yaml.load_all(text, BoundedLoader))
    assert time.process_time() - begun < 20.0
    found, problem = explain(caught.value)
    assert found == line
    assert words in problem


TAGS = ("int", "bool", "float", "timestamp", "set", "pairs", "null", "binary")
WORDS = ["&a ", "*a", "<<", "0x_", "1:1", "2001-99-99", "\n---\n", "\n  ", ": ", ", "]
WORDS += [f"!!{tag} " for tag in TAGS]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([*"[]{},:-?|>'\"!=.~1%#x\t\n ", *WORDS])
        | st.text(st.characters(codec=None), max_size=1),
        max_size=16,
    )
)
def test_nothing_but_an_error_of_yaml_is_raised(parts: list[str]) -> None:
    with contextlib.suppress(yaml.YAMLError):
        list(yaml.load_all("".join(parts), BoundedLoader))
