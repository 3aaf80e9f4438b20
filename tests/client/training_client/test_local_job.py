"""Functions that train on this machine, with two workers and all that a caller does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regroup import (
    AsyncJob,
    AsyncTrainingClient,
    JobFailedError,
    TrainingClient,
    TrainingClientError,
    TrainingJob,
)
from regroup.training_client.local_job import LocalJob
from regroup_operator.api.spec import TrainingJobSpec
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560)]
SECONDS = 240.0
"""For what takes seconds on a machine of one's own."""
PATIENT = {"failureDetection": {"timeoutMilliseconds": 60_000, "progressTimeoutSeconds": 500}}
"""A busy machine is no failure."""


@pytest.fixture(autouse=True)
def _warm(warm_workers: None) -> None:
    """What is tested comes after the start of workers."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TrainingClient]:
    with TrainingClient("local", directory=tmp_path / "runs") as client:
        yield client
        for name in ("line", "bad"):
            with contextlib.suppress(TrainingClientError):
                client.job(name).delete()


def train(steps: int, until: str, pause: float = 0.0) -> None:
    """Learn a line; after the tenth step wait for a file."""
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
        time.sleep(pause)


def fails() -> None:
    raise ValueError("no such data")


def test_a_function_trains_on_two_workers(client: TrainingClient, tmp_path: Path) -> None:
    go = tmp_path / "go"
    spec = {**PATIENT, "checkpoint": {"intervalSteps": 5}}
    job = client.train(
        train,
        func_args={"steps": 20, "until": str(go)},
        job=TrainingJob("line", spec),
        workers=(1, 2),
    )
    assert job.code == "function train is sent as source: it is self-contained"
    running = job.wait(SECONDS, phase="Running")
    assert (running.phase, running.replicas) == ("Running", 2)
    lines = job.logs(follow=True, rank=0)
    assert [next(lines) for _ in range(10)] == [f"rank 0: step {step}" for step in range(1, 11)]
    assert job.status.world_size == 2
    assert client.job("line") is job
    with pytest.raises(TimeoutError, match="job line is Running after 0 s, and not Succeeded"):
        job.wait(0)
    points = wait_until("points", job.metrics, SECONDS)
    assert points[-1].loss is not None
    wait_until("a checkpoint", job.checkpoints, SECONDS)
    weights = job.load_state_dict(5)  # while it trains
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "weight": (1, 1),
        "bias": (1,),
    }
    weights["weight"].add_(1)  # it is the caller's
    go.touch()
    done = job.wait(SECONDS)
    assert (done.phase, done.progress.step) == ("Succeeded", 20)
    assert list(lines)[-1] == "rank 0: step 20"
    assert "rank 1: step 20" in list(job.logs(rank=1))
    saved = job.checkpoints()
    assert saved[0].step == 20
    assert all(checkpoint.resumable and not checkpoint.problem for checkpoint in saved)
    with pytest.raises(TrainingClientError, match=r"--step 7: not in .*: choose one of 20, "):
        job.load_state_dict(7)
    kept = job.metrics()
    assert [p.step for p in kept] == sorted(p.step for p in kept)
    assert kept[0].world_size == 2
    job.delete()
    assert not (tmp_path / "runs/line").exists()


def test_it_is_suspended_scaled_and_resumed(client: TrainingClient, tmp_path: Path) -> None:
    go = tmp_path / "go"
    arguments = {"steps": 80, "until": str(go), "pause": 0.05}
    job = client.train(train, func_args=arguments, workers=(1, 2), job=TrainingJob("line", PATIENT))
    with pytest.raises(TrainingClientError, match="workers: 3: the job has 1 to 2"):
        job.scale(3)
    lines = job.logs(follow=True, rank=0)
    assert [next(lines) for _ in range(10)][-1] == "rank 0: step 10"
    job.resume()  # it trains
    assert job.status.phase == "Running"
    job.suspend()
    go.touch()
    assert job.wait(SECONDS, phase="Suspended").phase == "Suspended"
    job.scale(1)
    job.resume()
    done = job.wait(SECONDS)
    assert (done.phase, done.progress.step) == ("Succeeded", 80)
    assert not any(line.endswith("step 1") for line in list(job.logs(rank=0))[10:])
    with pytest.raises(TrainingClientError, match="only a suspended job can be resumed"):
        job.resume()


def test_a_function_that_raises_fails_the_job(client: TrainingClient) -> None:
    job = client.train(fails, job=TrainingJob("bad", {"restartPolicy": {"maxRestarts": 0}}))
    assert job.code == "function fails is sent as source: it is self-contained"
    with pytest.raises(JobFailedError, match="job bad has failed:") as raised:
        job.wait(SECONDS)
    assert raised.value.status.phase == "Failed"
    assert any("ValueError: no such data" in line for line in job.logs())
    assert job.checkpoints() == []
    with pytest.raises(TrainingClientError, match="job bad has no checkpoint yet"):
        job.load_state_dict()


def test_a_second_job_of_one_name_is_refused_while_the_first_runs(
    client: TrainingClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    given = {"steps": 11, "until": str(go)}
    job = client.train(train, func_args=given, job=TrainingJob("line", PATIENT))
    job.wait(SECONDS, phase="Running")
    with pytest.raises(TrainingClientError, match=r"name: line: a run has .*/line now: wait for"):
        client.train(fails, name="line")
    assert client.job("line") is job
    assert isinstance(job, LocalJob)
    other = LocalJob("line", job.spec, job.directory, tmp_path)
    with pytest.raises(TrainingClientError, match=r"another run has .*/line now: it stays"):
        other.delete()
    go.touch()
    assert job.wait(SECONDS).phase == "Succeeded"


async def test_who_stops_reading_logs_leaves_no_thread_behind(tmp_path: Path) -> None:
    class Talks(LocalJob):
        def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
            for number in range(5000):
                yield str(number)

    before = set(threading.enumerate())
    spec = TrainingJobSpec.model_validate({"trainer": {}})
    job = AsyncJob(Talks("line", spec, tmp_path, tmp_path))
    lines = job.logs()
    assert [await anext(lines) for _ in range(2)] == ["0", "1"]
    await lines.aclose()
    (reader,) = set(threading.enumerate()) - before
    await asyncio.to_thread(reader.join, SECONDS)
    assert not reader.is_alive()


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
