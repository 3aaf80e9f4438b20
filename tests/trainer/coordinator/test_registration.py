"""What an agent that is back is sent, and two agents of one index: who waits, and who takes over.
In virtual time, and over real HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from regroup_trainer.agent.coordinator_connection import CoordinatorConnection
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.protocol.agent_messages import Hello
from tests.support.coordinator_simulation import (
    Job,
    SimulatedAgent,
    make_desired,
    start_job,
)
from tests.support.generations import make_hello
from tests.support.waiting import wait_until

TOKEN = "s3cret"


def train() -> tuple[Job, list[SimulatedAgent]]:
    """Three workers that train."""
    job, agents = start_job()
    job.wait(1.0)
    return job, agents


def is_member(job: Job, agent: SimulatedAgent) -> bool:
    return agent.name in job.core.state.members


def returns(job: Job, agent: SimulatedAgent) -> None:
    """It was cut off, and what it was sent meanwhile is lost with its connection."""
    agent.reachable = True
    job.disconnect(agent)
    job.wait(2.0)


def test_rank_0_learns_that_a_worker_leaves_though_it_lost_the_begin_with_its_connection() -> None:
    job = Job(make_desired(steps=10_000))
    first, _ = job.add_agent(0), job.add_agent(1)
    job.cut_off(first)
    last = job.add_agent(2)
    job.ask_to_leave(last)
    assert job.record.number.n == 1
    assert first.state.record is None
    returns(job, first)
    assert job.indices == [0, 1]
    assert last.exit_code == 0


def test_a_rank_takes_its_state_out_of_a_failed_generation_of_which_its_agent_lost_the_begin() -> (
    None
):
    job, (first, second, third) = start_job(steps=10_000)
    at = job.step
    job.hang(second)
    job.report_lost(third, "node NotReady")
    job.cut_off(first)
    job.rank_ends(second, "peer", 137)
    assert job.record.number.n == 2
    assert first.is_parked
    job.fail_rank(second)
    returns(job, first)
    assert (job.record.number.n, job.record.restored_from) == (3, "Peers")
    assert job.resumed[job.record.number] >= at


def test_a_second_agent_of_an_index_waits_while_the_first_is_responsive() -> None:
    job, agents = train()
    number = job.record.number
    second = job.add_agent(1, "node-x")
    job.wait(5.0)
    assert job.record.number == number
    assert is_member(job, agents[1])
    assert not is_member(job, second)
    assert not job.core.state.account.ledger().restarts


def test_a_second_agent_takes_over_when_the_first_is_unresponsive() -> None:
    job, agents = train()
    second = job.add_agent(1, "node-x")
    job.wait(1.0)
    job.cut_off(agents[1])
    job.wait(5.0)
    assert is_member(job, second)
    assert job.record.place_of(second.name) is not None


def test_the_agent_that_replaces_a_dead_one_takes_its_place_with_its_first_hello() -> None:
    job, agents = train()
    job.disconnect(agents[1])
    agents[1].alive = False
    job.now += 0.01
    second = job.add_agent(1, "node-x")
    assert is_member(job, second)


def test_an_agent_whose_connection_broke_keeps_its_place_while_its_heartbeats_come() -> None:
    job, agents = train()
    agents[1].connects = False
    job.disconnect(agents[1])
    job.now += 0.01
    job.core.on_heartbeat(agents[1].name, job.now)
    second = job.add_agent(1, "node-x")
    assert not is_member(job, second)
    agents[1].connects = True
    job.wait(2.0)
    assert agents[1].exit_code is None
    assert is_member(job, agents[1])


def test_an_agent_that_restarts_in_its_pod_is_no_second_agent() -> None:
    job, agents = train()
    hello = agents[1].state.hello().model_copy(update={"record": None, "store": "10.0.0.9:1"})
    job.core.on_message(hello, agents[1].name, job.now)
    assert job.core.state.members[agents[1].name].hello.store == "10.0.0.9:1"


def test_with_a_new_coordinator_the_agent_with_ranks_has_the_place() -> None:
    job, agents = train()
    second = job.add_agent(1, "node-x")
    job.wait(0.5)
    number = job.record.number
    job.start_coordinator(term=2)
    job.connect(second)
    job.wait(2.0)
    assert job.record.number == number
    assert is_member(job, agents[1])
    assert not is_member(job, second)


def connection(url: str, hello: Hello) -> CoordinatorConnection:
    return CoordinatorConnection(url, TOKEN, 1, lambda: hello, lambda message: None)


async def test_over_http_the_second_agent_learns_why_it_waits_and_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desired = make_desired(directory=str(tmp_path / "job"), replicas=1, min_replicas=1)
    now = time.monotonic()
    core = Coordinator(1, "node-c", desired, now, time.time() - now)
    server = Server(core, TOKEN)
    hellos = [make_hello(member="uid-a"), make_hello(member="uid-b", pod="gpt-w0-2")]
    async with server.serve("127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}"
        first, second = (connection(url, hello) for hello in hellos)
        tasks = [asyncio.create_task(server.run()), asyncio.create_task(first.run())]
        await asyncio.to_thread(wait_until, "the first", lambda: first.welcomed)
        tasks.append(asyncio.create_task(second.run()))
        who = "gpt-w0-0 on node node-0"
        why = f"refused this agent for now: {who} is worker 0 already, and is responsive"
        await asyncio.to_thread(wait_until, "the refusal", lambda: why in caplog.text)
        assert list(core.state.members) == ["uid-a"]
        tasks[1].cancel()
        await asyncio.to_thread(wait_until, "the second", lambda: second.welcomed)
        assert list(core.state.members) == ["uid-b"]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
