"""Functions that train on this machine, with two workers and all that a caller does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regroup import (
    AsyncTrainingClient,
    JobFailedError,
    TrainingClient,
    TrainingClientError,
    TrainingJob,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560)]
SECONDS = 240.0
"""For what takes seconds on a machine of one's own."""


@pytest.fixture(autouse=True)
def _warm(warm_workers: None) -> None:
    """What is tested comes after the start of workers."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TrainingClient]:
    with TrainingClient("local", directory=tmp_path / "runs") as client:
        yield client


def train(steps: int, until: str) -> None:
    """Learn a line; from the tenth step on wait for a file at each step."""
    import time
    from pathlib import Path

    import torch
    from torch import nn

    from regroup_trainer import Session

    class Line:
        inputs = torch.linspace(-1, 1, 64)[:, None]

        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            return self.inputs[index], 2 * self.inputs[index]

    session = Session(seed=0)
    model = session.prepare(nn.Linear(1, 1))
    session.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in session.batches(Line(), steps=steps, global_batch_size=8):
        session.backward(((model(inputs) - targets) ** 2).mean())
        session.step()
        print(f"step {session.steps}", flush=True)
        while session.steps == 10 and not Path(until).exists():
            time.sleep(0.1)


def fails() -> None:
    raise ValueError("no such data")


def test_a_function_trains_on_two_workers(client: TrainingClient, tmp_path: Path) -> None:
    go = tmp_path / "go"
    spec = {"checkpoint": {"intervalSteps": 5}}
    job = client.train(
        train,
        func_args={"steps": 20, "until": str(go)},
        job=TrainingJob("line", spec),
        workers=(1, 2),
    )
    assert "is sent by cloudpickle" in job.code  # its annotations need its module
    running = job.wait(SECONDS, phase="Running")
    assert (running.phase, running.replicas) == ("Running", 2)
    wait_until("the tenth step", lambda: job.status.progress.step >= 9, SECONDS)
    assert job.status.world_size == 2
    assert client.job("line") is job
    lines = job.logs(follow=True, rank=0)
    assert next(lines) == "rank 0: step 1"
    with pytest.raises(TimeoutError, match="job line is Running after 0 s, and not Succeeded"):
        job.wait(0)
    points = wait_until("points", job.metrics, SECONDS)
    assert points[-1].loss is not None
    go.touch()
    done = job.wait(SECONDS)
    assert (done.phase, done.progress.step) == ("Succeeded", 20)
    assert list(lines)[-1] == "rank 0: step 20"
    assert "rank 1: step 20" in list(job.logs(rank=1))
    saved = job.checkpoints()
    assert saved[0].step == 20
    assert all(checkpoint.resumable and not checkpoint.problem for checkpoint in saved)
    kept = job.metrics()
    assert [p.step for p in kept] == sorted(p.step for p in kept)
    assert kept[0].world_size == 2
    job.delete()
    assert not (tmp_path / "runs/line").exists()


def test_it_is_suspended_scaled_and_resumed(client: TrainingClient, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = client.train(
        train, func_args={"steps": 12, "until": str(go)}, workers=(1, 2), name="line"
    )
    with pytest.raises(TrainingClientError, match="workers: 3: the job has 1 to 2"):
        job.scale(3)
    wait_until("the ninth step", lambda: job.status.progress.step >= 9, SECONDS)
    job.suspend()
    go.touch()  # a script's step ends before it can be saved
    suspended = job.wait(SECONDS, phase="Suspended")
    if suspended.phase == "Succeeded":
        pytest.skip("it was done before it was suspended")
    job.scale(1)
    job.resume()
    done = job.wait(SECONDS)
    assert (done.phase, done.progress.step) == ("Succeeded", 12)
    assert (tmp_path / "runs/line/logs/line-w0-0.log").exists()
    with pytest.raises(TrainingClientError, match="only a suspended job can be resumed"):
        job.resume()


def test_a_function_that_raises_fails_the_job(client: TrainingClient) -> None:
    job = client.train(fails, job=TrainingJob("bad", {"restartPolicy": {"maxRestarts": 0}}))
    assert job.code == "function fails is sent as source: it is self-contained"
    with pytest.raises(JobFailedError, match="job bad has failed:") as raised:
        job.wait(SECONDS)
    assert raised.value.status.phase == "Failed"
    assert any("ValueError: no such data" in line for line in job.logs())


async def test_the_same_without_blocking_an_event_loop(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('begins', *sys.argv[1:], flush=True)\n")
    async with AsyncTrainingClient("local", directory=tmp_path / "runs") as client:
        job = await client.train(script=script, script_args=["now"])
        lines = [line async for line in job.logs(follow=True)]
        status = await asyncio.wait_for(job.wait(SECONDS), SECONDS)
    assert lines == ["rank 0: begins now"]
    assert status.phase == "Succeeded"
    assert job.code == "script script.py is sent as it is, without files beside it"
