"""What counts as typed by a test: not each string that its file has."""

from __future__ import annotations

from tests.support.typed_strings import typed_strings

SOURCE = '''
"""regroup docstring"""
NAMED, PAIR, UNUSED = "regroup named", ("regroup a", "regroup b"), "regroup unused"
NOTES = {"regroup note": 1}

@pytest.mark.parametrize(("text", "shown"), [("regroup case", "regroup shown")])
def test_one(terminal, text, shown):
    terminal.type("regroup direct", NAMED, changes={"regroup old": "regroup new"})
    first, *_ = PAIR
    terminal.type(*PAIR[1:], first)
    with terminal.running(text) as until:
        until("regroup printed")
    for each in ("regroup looped",):
        terminal.try_to_type(each)
    assert shown == "regroup compared"

@pytest.mark.parametrize("text", ["regroup alone"])
def test_two(terminal, text):
    terminal.type(text)
'''


def test_strings_count_where_they_are_handed_to_a_terminal() -> None:
    direct = {"regroup direct", "regroup looped"}
    of_names = {"regroup named", "regroup a", "regroup b"}
    of_cases = {"regroup case", "regroup alone"}
    assert typed_strings(SOURCE) >= direct | of_names | of_cases


def test_a_string_that_is_only_there_does_not_count() -> None:
    never = {"docstring", "note", "old", "new", "shown", "printed", "compared"}
    assert not typed_strings(SOURCE) & {f"regroup {name}" for name in never}
