"""Which losses a replica remembers."""

from __future__ import annotations

from regroup_operator.informer.recent_losses import RecentLosses


def test_the_newest_of_a_namespace_are_remembered_once_each() -> None:
    losses = RecentLosses(2)
    for name in ("one", "two", "one", "three"):
        losses.add(("a", name))
    assert losses.take() == [("a", "one"), ("a", "three")]
    assert len(losses) == 0


def test_losses_of_one_namespace_do_not_make_those_of_another_forgotten() -> None:
    losses = RecentLosses(256)
    losses.add(("b", "gpt"))
    for number in range(300):
        losses.add(("a", f"made-up{number}"))
    assert len(losses) == 256
    assert losses.take()[:2] == [("b", "gpt"), ("a", "made-up45")]
