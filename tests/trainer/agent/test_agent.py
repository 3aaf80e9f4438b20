"""A real agent process against a real coordinator on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import signal
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest

from regroup_trainer.agent.agent import run_worker
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.protocol.environment import LOG_FORMAT
from regroup_trainer.protocol.exit_codes import TERMINATED, WRONG_USAGE
from regroup_trainer.system.command_line import shell_code
from regroup_trainer.system.machine_address import free_port
from tests.support.agent_site import WARM_SECONDS, ended, make_site
from tests.support.logged_lines import subjects_of
from tests.support.open_files import few_open_files
from tests.support.waiting import wait_until


@pytest.mark.slow
async def test_a_wrong_token_ends_the_agent_with_a_sentence(tmp_path: Path) -> None:
    async with make_site(tmp_path, "finish") as site:
        code, text = await ended(site.start_agent(token="wrong"), WARM_SECONDS)
    assert code == 2
    assert "the coordinator refused the token (HTTP 401)" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "form"),
    [("finish", "text"), ("finish, then abort", "json"), ("abort after the last line", "text")],
)
async def test_a_worker_whose_rank_finishes_ends_with_zero_and_logs_what_its_lines_are_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, form: str
) -> None:
    monkeypatch.setenv(LOG_FORMAT, form)
    async with make_site(tmp_path, how) as site:
        agent = site.start_agent()
        await site.until("completed")
        code, text = await ended(agent)
    assert code == 0, text
    assert not (tmp_path / "termination").exists()
    subjects = subjects_of(text, form)
    assert subjects["generation 1.1: ranks [0] of 1"] == "default/gpt 1.1"
    if how == "finish, then abort":
        assert subjects["the rank has finished"] == f"default/{how} 1.1"


@pytest.mark.slow
async def test_an_agent_sends_heartbeats_and_asks_to_leave(tmp_path: Path) -> None:
    async with make_site(tmp_path, "hang") as site:
        agent = site.start_agent()
        await asyncio.to_thread(
            wait_until, "the rank's first report", lambda: _restored(site.core), WARM_SECONDS
        )
        last_seen = site.core.state.members["uid-0"].last_seen
        await asyncio.to_thread(
            wait_until,
            "a heartbeat",
            lambda: site.core.state.members["uid-0"].last_seen > last_seen,
        )
        agent.send_signal(signal.SIGTERM)
        await asyncio.to_thread(
            wait_until, "the request to leave", lambda: site.core.state.members["uid-0"].leaving
        )
        assert site.core.state.current is not None
        assert site.core.state.current.transition is not None


@pytest.mark.slow
async def test_an_agent_that_is_sent_its_coordinators_address_shows_life_before_torch_is_there(
    tmp_path: Path,
) -> None:
    async with make_site(tmp_path, "hang") as site:
        port = free_port()
        nobody = f"http://127.0.0.1:{free_port()}"
        site.start_agent(coordinator_url=nobody, metrics_port=port)
        url, body = f"http://127.0.0.1:{port}/v1/coordinator", f'{{"url": "{site.url}"}}'
        await asyncio.to_thread(wait_until, "its endpoint", lambda: _accepts(port), WARM_SECONDS)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {site.token}"}) as session,
            session.put(url, data=body) as answer,
        ):
            assert answer.status == 204
        state = site.core.state
        await asyncio.to_thread(wait_until, "a sign of life", lambda: 0 in state.importing)
        assert not state.members, "it imports torch"
        assert "uid-0" in state.unknown_members
        await asyncio.to_thread(wait_until, "a rank", lambda: _restored(site.core), WARM_SECONDS)


@pytest.mark.slow
async def test_a_scrape_shows_the_memory_and_the_last_report_of_a_rank(tmp_path: Path) -> None:
    async with make_site(tmp_path, "hang") as site:
        port = free_port()
        site.start_agent(metrics_port=port)
        await asyncio.to_thread(wait_until, "a rank", lambda: _restored(site.core), WARM_SECONDS)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            text = await answer.text()
    assert 'trainingjob_rank_memory_bytes{kind="host",' in text
    assert 'trainingjob_rank_memory_bytes{kind="host_available",' in text
    assert "trainingjob_rank_heartbeat_timestamp_seconds{" in text


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
@pytest.mark.slow
async def test_a_rank_that_hangs_is_found_by_its_stack(tmp_path: Path) -> None:
    async with make_site(
        tmp_path, "stall", progress_timeout_seconds=2, max_hang_restarts=0
    ) as site:
        site.start_agent()
        await site.until("failed")
        assert site.core.state.outcome is not None
        assert "is in wait_for_ever (" in site.core.state.outcome.message
        assert site.core.state.outcome.message.startswith(
            "no progress for 2 s: rank 0 on gpt-w0-0 ("
        )


@pytest.mark.long
@pytest.mark.slow
async def test_a_rank_that_does_not_leave_its_generation_in_time_is_killed_and_its_stack_logged(
    tmp_path: Path,
) -> None:
    async with make_site(tmp_path, "stall", replicas=2) as site:
        agent = site.start_agent()
        other = site.start_agent(member="uid-1", index=1, pod="gpt-w1-0", node="node-1")
        await asyncio.to_thread(
            wait_until, "the ranks' first reports", lambda: _restored(site.core, 2), WARM_SECONDS
        )
        current = site.core.state.current
        assert current is not None
        other.kill()
        await asyncio.to_thread(wait_until, "the end of rank 0", lambda: 0 in current.exits)
        agent.kill()
        _, text = await ended(agent)
    late = re.search(r"rank 0 did not leave its generation within (\d+) s; its stack:", text)
    assert late is not None
    assert int(late[1]) >= 10, "and more, where the machine had no time for it"
    assert "in wait_for_ever" in text.partition("its stack:")[2]


def _restored(core: Coordinator, ranks: int = 1) -> bool:
    return core.state.current is not None and set(range(ranks)) <= set(core.state.current.restored)


@pytest.mark.slow
async def test_an_agent_that_nobody_answers_ends_at_once_when_asked(tmp_path: Path) -> None:
    async with make_site(tmp_path, "hang") as site:
        site.url = "http://127.0.0.1:9"
        agent = site.start_agent()
        pid = agent.pid
        await asyncio.to_thread(wait_until, "its template", lambda: _has_child(pid), 60.0)
        agent.send_signal(signal.SIGTERM)
        code, _ = await ended(agent)
    assert code == 143


@pytest.mark.slow
async def test_signals_until_an_agent_has_ended_print_no_traceback(tmp_path: Path) -> None:
    """Kubelets and impatient people send more than one."""
    async with make_site(tmp_path, "hang") as site:
        site.url = "http://127.0.0.1:9"
        agent = site.start_agent()
        pid = agent.pid
        await asyncio.to_thread(wait_until, "its template", lambda: _has_child(pid), WARM_SECONDS)
        await asyncio.to_thread(_signal_until_it_ends, agent)
        code, text = await ended(agent)
    # The loop sets the signal's default action for a moment, which then ends the process (-15).
    assert shell_code(code) == TERMINATED, text
    assert not [word for word in ("Traceback", "Exception ignored") if word in text], text


def _signal_until_it_ends(agent: subprocess.Popen[str]) -> None:
    while agent.poll() is None:
        agent.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(0.005)


def _has_child(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())
    return False


def test_ranks_may_have_a_connection_to_each_of_thousands_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.environ", {})
    with few_open_files() as limits:
        assert run_worker() == WRONG_USAGE
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
