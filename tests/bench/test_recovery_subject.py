"""The operator's part in the recovery benchmark: when and where the dead come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import recovery_subject
from bench.nodes import CONTROL
from bench.recovery_faults import struck_node
from bench.recovery_settings import REPLACE_NODE_SECONDS, REPLACE_SECONDS
from bench.recovery_subject import NODES, Subject
from bench.recovery_torchft import Torchft
from bench.recovery_torchrun import STOCK, TUNED, Launcher, Torchrun

SPARE = NODES


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Process:
    def __init__(self, node: int) -> None:
        self.node = node
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Nodes:
    count = NODES

    def plug(self, node: int) -> None:
        assert 1 <= node <= NODES

    def processes(self, node: int) -> dict[int, str]:
        return {}


class Training(Subject):
    """Workers that only die when the test ends them."""

    def __init__(self) -> None:
        fake: Any = Nodes()
        super().__init__(fake, Path(), workers=3)

    def start_worker(self, index: int, node: int) -> Any:
        return Process(node)

    def start_control(self) -> Any:
        return Process(0)

    def look(self) -> None: ...

    def world_size(self) -> int:
        return 3

    def detected(self, since: float) -> float | None:
        return None

    def places(self) -> dict[int, int]:
        """Worker -> node, of those that run."""
        return {index: worker.node for index, worker in self.workers.items() if worker.runs()}

    def end(self, process: Any) -> None:
        process.code = -9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recovery_subject, "time", made)
    return made


@pytest.fixture
def training(clock: Clock) -> Training:
    made = Training()
    made.keep()
    return made


def keep_for(training: Training, clock: Clock, seconds: float) -> None:
    training.keep()
    clock.now += seconds
    training.keep()


def test_at_first_each_worker_has_a_node_and_one_is_spare(training: Training) -> None:
    assert training.places() == {0: 1, 1: 2, 2: 3}
    assert training.control is not None


def test_a_dead_worker_comes_back_on_its_node_after_the_delay_and_not_before(
    training: Training, clock: Clock
) -> None:
    training.end(training.workers[1].process)
    keep_for(training, clock, REPLACE_SECONDS - 0.1)
    assert training.places() == {0: 1, 2: 3}
    keep_for(training, clock, 0.1)
    assert training.places() == {0: 1, 1: 2, 2: 3}


def test_the_worker_of_a_lost_node_comes_back_on_the_spare_one(
    training: Training, clock: Clock
) -> None:
    training.lose(1)
    keep_for(training, clock, REPLACE_NODE_SECONDS - 0.1)
    assert training.places()[0] == 1
    keep_for(training, clock, 0.1)
    assert training.places() == {0: SPARE, 1: 2, 2: 3}


def test_a_worker_without_a_node_waits_until_one_is_there_again(
    training: Training, clock: Clock
) -> None:
    training.lose(1)
    keep_for(training, clock, REPLACE_NODE_SECONDS)
    training.lose(2)
    training.end(training.workers[1].process)
    keep_for(training, clock, 10 * REPLACE_NODE_SECONDS)
    assert training.places() == {0: SPARE, 2: 3}
    training.regain(1)
    training.keep()
    keep_for(training, clock, REPLACE_NODE_SECONDS)
    assert training.places() == {0: SPARE, 1: 1, 2: 3}


def test_a_dead_control_plane_comes_back_after_the_delay(training: Training, clock: Clock) -> None:
    dead = training.control
    training.end(dead)
    keep_for(training, clock, REPLACE_SECONDS - 0.1)
    assert training.control is dead
    keep_for(training, clock, 0.1)
    assert training.control is not dead


def test_a_worker_that_dies_twice_waits_twice(training: Training, clock: Clock) -> None:
    for _ in range(2):
        training.end(training.workers[0].process)
        keep_for(training, clock, REPLACE_SECONDS - 0.1)
        assert 0 not in training.places()
        keep_for(training, clock, 0.1)
        assert training.places()[0] == 1


def test_more_workers_start_at_once(training: Training) -> None:
    training.desired_workers = 2
    training.workers.pop(2)
    training.keep()
    assert training.places() == {0: 1, 1: 2}
    training.scale(3)
    training.keep()
    assert training.places() == {0: 1, 1: 2, 2: 3}


class Agents(Torchrun):
    """Agents that only write to their logs what the test asks for."""

    def __init__(self, folder: Path, launcher: Launcher = TUNED) -> None:
        fake: Any = Nodes()
        super().__init__(fake, folder, 3, launcher)

    def start_control(self) -> Any:
        return Process(CONTROL)

    def start_worker(self, index: int, node: int) -> Any:
        (self.folder / f"w{index}.log").write_text("Traceback of a former generation\n")
        return Process(node)

    def log(self, index: int, line: str) -> None:
        with (self.folder / f"w{index}.log").open("a") as file:
            file.write(line)
        self.look()


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    made = Agents(tmp_path)
    made.keep()
    return made


FAILED = "E1122 07:09:07 25000 api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 25079)\n"


def test_the_agent_of_a_killed_rank_is_the_first_that_notices(agents: Agents) -> None:
    agents.watch(struck_node(agents, "rank-kill", 1), pid=-1)
    agents.log(0, "I1122 nothing\n")
    assert agents.detected(0.0) is None
    agents.log(0, FAILED)
    assert agents.detected(0.0) is not None


def test_what_is_on_a_lost_node_notices_nothing_but_another_worker_does(agents: Agents) -> None:
    agents.watch(struck_node(agents, "network-cut", 1), pid=-1)
    agents.log(0, FAILED)
    assert agents.detected(0.0) is None
    agents.log(2, "[rank2]: Traceback (most recent call last):\n")
    assert agents.detected(0.0) is not None


def test_what_the_workers_meet_at_is_on_the_control_plane_but_in_stock_torchrun_in_the_first_worker(
    tmp_path: Path,
) -> None:
    fake: Any = Nodes()
    stock, tuned, torchft = Agents(tmp_path, STOCK), Agents(tmp_path), Torchft(fake, tmp_path, 3)
    assert [struck_node(one, "coordinator-kill", 2) for one in (stock, tuned, torchft)] == [
        1,
        CONTROL,
        CONTROL,
    ]
