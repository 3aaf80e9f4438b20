"""A bounded memory of names."""

from __future__ import annotations

from regroup_operator.informer.recent_names import RecentNames


def test_the_name_that_was_used_longest_ago_makes_room() -> None:
    names = RecentNames(2)
    names.add("a")
    names.add("b")
    assert "a" in names
    names.add("c")
    assert ("a" in names, "b" in names, "c" in names) == (True, False, True)
    assert len(names) == 2
