"""How ranks ended: the report to the coordinator, and the termination message for Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from regroup_trainer.agent.template_protocol import RankEnded
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE, PORT_TAKEN_EXIT_CODE
from regroup_trainer.system.program_error import excerpt

TERMINATION_BYTES = 4096
"""Kubernetes keeps no more of a termination message."""
OOM_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)
"""The files of cgroup v2 and v1, as a container sees its own."""


def oom_kills(paths: tuple[Path, ...] = OOM_COUNTERS) -> int:
    """Processes of this container that the kernel has killed for memory; 0 without a counter."""
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def rank_exit(end: RankEnded, oom: bool) -> RankExit:
    """The report on the end of a rank process.

    `oom`: the kernel has killed a process for memory since this generation began.
    """
    return RankExit(
        generation=end.generation,
        rank=end.rank,
        exit_code=end.exit_code or 1,
        signal=end.signal,
        cause=_cause(end, oom),
        message=end.stderr_tail or _explanation(end),
    )


def _cause(end: RankEnded, oom: bool) -> Literal["error", "signal", "oom", "peer"]:
    if end.exit_code in (PEER_LOST_EXIT_CODE, PORT_TAKEN_EXIT_CODE):
        return "peer"
    if end.signal is not None:
        return "oom" if oom else "signal"
    return "error"


def _explanation(end: RankEnded) -> str:
    if end.exit_code == 0:
        return "the rank ended with exit code 0 without the report that it had finished"
    return ""


def termination_message(end: RankExit) -> str:
    """JSON for the kubelet, cut to what Kubernetes keeps."""
    fields = {"rank": end.rank, "exitCode": end.exit_code, "signal": end.signal, "cause": end.cause}
    room = TERMINATION_BYTES - len(json.dumps({**fields, "message": ""}))
    message, limit = end.message, len(end.message)
    while len(json.dumps(message)) - 2 > room:
        limit -= max(1, limit // 16)
        message = excerpt(end.message, limit)
    return json.dumps({**fields, "message": message})
