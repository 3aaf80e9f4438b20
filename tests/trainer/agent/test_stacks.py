"""What the ranks of a pod do, as a command in the pod prints it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regroup.local.processes import descendants
from regroup_trainer.agent.stacks import collect, describe, stack_file
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.agent_messages import RankStack, Stack, WorkerStacks
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.machine_address import free_port
from tests.support.agent_site import WARM_SECONDS, make_site
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.waiting import wait_until

NUMBER = GenerationNumber(1, 1)
COMMAND = (sys.executable, "-P", "-m", "regroup_trainer.agent.stacks")


def ask(folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Run the command as `kubectl exec` does: with the variables of the pod."""
    environment = AgentEnvironment(
        coordinator_url="http://unused:1",
        token_file=str(folder / "token"),
        namespace="default",
        job="gpt",
        member="uid-0",
        index=0,
        pod="gpt-w0-0",
        node="node-0",
        address="127.0.0.1",
        metrics_port=port,
    )
    proxies = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
    variables = {**os.environ, **environment.variables(), **proxies}
    return subprocess.run(COMMAND, env=variables, capture_output=True, text=True, check=False)


def rank_of(agent: int) -> int | None:
    """The process of rank 0."""
    names = {pid: Path(f"/proc/{pid}/comm") for pid in descendants(agent)}
    return next((p for p, f in names.items() if f.exists() and "rank-0" in f.read_text()), None)


@pytest.mark.slow
async def test_a_command_in_the_pod_prints_what_its_ranks_do(tmp_path: Path) -> None:
    async with make_site(tmp_path, "stall") as site:
        port = free_port()
        agent = site.start_agent(metrics_port=port)

        def shown() -> RankStack | None:
            done = ask(tmp_path, port)
            found = WorkerStacks.model_validate_json(done.stdout or '{"ranks": []}').ranks
            return found[0] if found and "wait_for_ever" in found[0].text else None

        stack = await asyncio.to_thread(wait_until, "a stack", shown, WARM_SECONDS)
        assert (stack.rank, stack.missing) == (0, "")
        rank = rank_of(agent.pid)
        assert rank is not None, "it lives on"
        os.kill(rank, signal.SIGSTOP)
        (stopped,) = WorkerStacks.model_validate_json(
            (await asyncio.to_thread(ask, tmp_path, port)).stdout
        ).ranks
        os.kill(rank, signal.SIGCONT)
        assert stopped == RankStack(rank=0, missing="is stopped (by SIGSTOP)")
        await asyncio.to_thread(wait_until, "a stack again", shown, 60)
        (tmp_path / "token").write_text("wrong")
        refused = await asyncio.to_thread(ask, tmp_path, port)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the agent of this pod shows no stacks: HTTP status 401" in refused.stderr


async def test_an_answer_that_came_too_late_is_no_part_of_the_next_one(tmp_path: Path) -> None:
    record = make_record(NUMBER, (make_hello(0),), make_desired(), ("Nothing", "test"))
    file = stack_file(tmp_path, 0)
    file.write_text("late")
    (stack,) = await collect(lambda: append(file, "new"), tmp_path, record, {4: 0})
    assert (stack.rank, stack.text) == (4, "new")


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def test_without_an_agent_the_command_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    done = ask(tmp_path, free_port())
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Connection refused" in done.stderr


def test_a_rank_that_shows_no_stack_is_reported() -> None:
    empty = Stack(generation=NUMBER, rank=3)
    assert describe(empty, None).missing == "shows no stack: it has just started"
    with subprocess.Popen(["sleep", "600"]) as other:
        wait_until("the other program", lambda: runs_sleep(other.pid), seconds=60)
        assert "has become another program" in describe(empty, other.pid).missing
        other.kill()
        # Its memory is gone before it counts as ended.
        ended = "has ended"
        wait_until("its end", lambda: describe(empty, other.pid).missing == ended, seconds=60)


def runs_sleep(pid: int) -> bool:
    return "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
