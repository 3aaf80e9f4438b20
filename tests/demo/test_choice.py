"""The choice of the demo's cluster."""

from __future__ import annotations

import pytest

from demo.errors import DemoError
from demo.stages import choice
from demo.stages.kind import KindStage
from devcluster.errors import DevclusterError


def refuse() -> None:
    raise DevclusterError("run it as root")


def test_the_requested_cluster_is_chosen() -> None:
    assert choice.choose("current") == ("current", "CLUSTER=current asks for it")


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        DemoError, match="'minikube': choose one of devcluster, kind, current, local"
    ):
        choice.choose("minikube")


def test_without_a_request_the_callers_own_cluster_is_never_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "preflight", refuse)
    for available in (True, False):
        monkeypatch.setattr(KindStage, "available", lambda there=available: there)
        assert choice.choose(None)[0] != "current"


def test_where_devcluster_cannot_run_the_reason_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
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
