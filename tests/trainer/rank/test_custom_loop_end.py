"""How a session goes on after its generation has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from regroup_trainer.errors import ProgramRestartError
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.rank import session as session_module
from regroup_trainer.rank.custom_loop import CustomLoop
from regroup_trainer.rank.session import Session


class Ended:
    """A generation that ends by agreement, and leaves a state in memory."""

    def __init__(self) -> None:
        self.breaks: list[Exception] = []

    def act(self, decision: Decision) -> str:
        return "leave"

    def finish(self, outcome: str) -> object:
        return object()

    def break_off(self, error: Exception) -> object:
        self.breaks.append(error)
        return object()

    def park(self, resident: object) -> None:
        raise AssertionError("a generation that ended by agreement is not parked")


def test_a_program_that_cannot_enter_the_next_generation_ends_and_does_not_park_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise ProgramRestartError("no peer has the newest state")

    monkeypatch.setattr(session_module, "enter_next_generation", refuse)
    monkeypatch.setattr(session_module, "forget_process_group", lambda: None)
    ended = Ended()
    loop = SimpleNamespace(generation=ended, program=None, decision=Decision.LEAVE)
    session = Session.__new__(Session)
    session._loop = cast(CustomLoop, loop)
    session._launch = cast(Any, SimpleNamespace(channel=None))
    with pytest.raises(ProgramRestartError):
        session._together(session._act)
    assert ended.breaks == []
