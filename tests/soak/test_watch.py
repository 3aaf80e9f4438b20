"""The thread that looks at the jobs of a soak."""

from __future__ import annotations

from typing import cast

import pytest

from soak import watch
from soak.site import Job, Site
from soak.watch import Watch
from tests.support.waiting import wait_until


class Broken:
    """A job whose folder cannot be looked for."""

    name = "gpt"

    def folder(self) -> None:
        """A status without what the soak reads of it."""
        raise KeyError("status")


def watch_until_broken(seen: Watch, then: Exception | None = None) -> None:
    """What an episode does: it watches, and ends by itself or by the error `then`."""
    with seen:
        wait_until("the end of the thread", lambda: not seen._thread.is_alive())
        if then is not None:
            raise then


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.01)
    return Watch(cast(Site, None), (cast(Job, Broken()),))


def test_an_error_in_the_watch_is_an_error_of_the_episode(seen: Watch) -> None:
    with pytest.raises(RuntimeError, match="stopped watching") as raised:
        watch_until_broken(seen)
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match="stopped watching"):
        seen.raise_error()  # as before each fault


def test_an_error_of_the_episode_is_not_hidden_by_one_in_the_watch(seen: Watch) -> None:
    with pytest.raises(ValueError, match="its own"):
        watch_until_broken(seen, ValueError("its own"))
