"""Where Lightning's ranks are, as the environment says."""

from __future__ import annotations

import pytest

from regroup_trainer.integrations.for_lightning import JobEnvironment, placement


def test_the_trainer_has_as_many_devices_and_nodes_as_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "GROUP_RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    found = placement()
    (environment,) = found.pop("plugins")
    assert found == {"devices": 2, "num_nodes": 3}
    assert isinstance(environment, JobEnvironment)
    assert environment.creates_processes_externally
    assert (environment.main_address, environment.main_port) == ("h", 7)
    assert (environment.global_rank(), environment.node_rank()) == (5, 2)


def test_without_a_launcher_lightning_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert placement() == {}
