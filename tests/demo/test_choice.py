"""Where the demo plays."""

from __future__ import annotations

import pytest

from demo.errors import DemoError
from demo.stages import choice
from demo.stages.kind import KindStage
from devcluster.errors import DevclusterError


def refuse() -> None:
    raise DevclusterError("run it as root")


def test_what_is_asked_for_is_taken() -> None:
    assert choice.choose("current") == ("current", "CLUSTER=current asks for it")


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(DemoError, match="'minikube': choose one of devcluster, kind, current, local"):
        choice.choose("minikube")


def test_unasked_the_callers_own_cluster_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "preflight", refuse)
    for available in (True, False):
        monkeypatch.setattr(KindStage, "available", lambda there=available: there)
        assert choice.choose(None)[0] != "current"


def test_where_devcluster_cannot_be_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "preflight", refuse)
    monkeypatch.setattr(KindStage, "available", lambda: False)
    kind, why = choice.choose(None)
    assert kind == "local"
    assert "run it as root" in why


def test_kind_is_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "preflight", refuse)
    monkeypatch.setattr(KindStage, "available", lambda: True)
    assert choice.choose(None)[0] == "kind"


def test_devcluster_is_the_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "preflight", lambda: None)
    assert choice.choose(None)[0] == "devcluster"
