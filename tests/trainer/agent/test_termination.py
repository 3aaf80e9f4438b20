"""How the end of a rank is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regroup_trainer.agent.template_protocol import RankEnded
from regroup_trainer.agent.termination import (
    TERMINATION_BYTES,
    oom_kills,
    rank_exit,
    termination_message,
)
from regroup_trainer.errors import PortTakenError
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE, PORT_TAKEN_EXIT_CODE
from regroup_trainer.protocol.generation import GenerationNumber


def make_end(**changes: object) -> RankEnded:
    """A rank that ended with code 1."""
    return RankEnded.model_validate(
        {"generation": GenerationNumber(1, 1), "rank": 2, "exit_code": 1, **changes}
    )


@pytest.mark.parametrize(
    ("end", "oom", "cause", "code"),
    [
        (make_end(), False, "error", 1),
        (make_end(exit_code=137, signal=9), False, "signal", 137),
        (make_end(exit_code=137, signal=9), True, "oom", 137),
        (make_end(exit_code=PEER_LOST_EXIT_CODE), True, "peer", PEER_LOST_EXIT_CODE),
        (make_end(exit_code=PortTakenError.exit_code), False, "peer", PORT_TAKEN_EXIT_CODE),
        (make_end(exit_code=0), False, "error", 1),
    ],
)
def test_names_the_cause(end: RankEnded, oom: bool, cause: str, code: int) -> None:
    report = rank_exit(end, oom)
    assert (report.cause, report.exit_code) == (cause, code)


def test_an_end_with_code_zero_and_no_message_is_explained() -> None:
    message = rank_exit(make_end(exit_code=0), oom=False).message
    assert "with exit code 0 without the report that it had finished" in message


def test_the_termination_message_fits_and_keeps_the_end_of_the_traceback() -> None:
    words = (
        "\n".join(f'File "über.py", line {k}' for k in range(1000))[-3900:]
        + "\nValueError: the point"
    )
    message = termination_message(rank_exit(make_end(stderr_tail=words), oom=False))
    parsed = json.loads(message)
    assert len(message.encode()) <= TERMINATION_BYTES
    assert (parsed["rank"], parsed["exitCode"], parsed["cause"]) == (2, 1, "error")
    assert parsed["message"].endswith("ValueError: the point")


def test_reads_the_memory_events_of_both_cgroup_versions(tmp_path: Path) -> None:
    v2, v1 = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    assert oom_kills((v2, v1)) == 0
    v1.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills((v2, v1)) == 2
    v2.write_text("low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n")
    assert oom_kills((v2, v1)) == 1
