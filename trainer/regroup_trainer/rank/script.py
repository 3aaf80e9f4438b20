"""Runs a user's program as a rank, in a process that has imported torch already.

A program that uses `Session` is a full member of its generation. Any other program finds the
environment that torchrun gives (RANK, WORLD_SIZE, MASTER_ADDR, ...) and is started again in every
generation. It saves and loads its state by itself.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Mapping

from regroup_trainer.errors import ConfigurationError, PortTakenError, TrainingError
from regroup_trainer.parallel.process_group import interface_towards
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.desired import UNLIMITED_RESTARTS
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.protocol.exit_codes import INTERRUPTED, WRONG_USAGE
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.progress_pattern import NEEDS_RE2, has_re2
from regroup_trainer.rank import accelerate_config, launch, script_report
from regroup_trainer.rank.accelerate_config import JobSize
from regroup_trainer.rank.busy_reports import USER_SECONDS
from regroup_trainer.rank.joining import is_generation_lost
from regroup_trainer.rank.launch import Launch
from regroup_trainer.rank.meeting_point import MeetingPoint
from regroup_trainer.system import command_line, rendezvous_check
from regroup_trainer.system.rendezvous_check import RankPlace
from regroup_trainer.system.script_children import watch_child, watch_script

_END_SECONDS = 10.0
"""How long threads and `atexit` of a program that failed may keep its process."""
_USERS = ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "ROLE_NAME")
"""Variables that stay as the user has set them."""
_OF_CHILDREN = f"from {watch_child.__module__} import {watch_child.__name__}"


def run(assignment: Assignment, channel: Channel) -> int:
    """Run the program to its end; returns its exit code.

    Raises ConfigurationError, and what the program raises when its generation is lost.
    """
    if assignment.record.desired.progress_pattern and not has_re2():
        raise ConfigurationError(NEEDS_RE2)
    here = Launch(assignment, channel)
    launch.announce(here)
    here.busy.begin("starting the program", USER_SECONDS)
    meeting = MeetingPoint.agree(assignment)
    os.environ.update(environment(assignment, os.environ, meeting.port))
    place = _place_of(assignment, os.environ)
    children = watch_script(place, ConfigurationError, _OF_CHILDREN, meeting.meet)
    meeting.refuse = children.end_script
    try:
        code = command_line.execute(assignment.record.desired.script)
        if _is_rank(here):
            _end_session(here, code)
    except command_line.NoScriptError as error:
        print(error, file=sys.stderr, flush=True)  # of usage: other nodes may have the script
        return WRONG_USAGE
    except BaseException as error:
        code = _code_after(error, here, place)
    if not _is_rank(here):  # a process that the program has forked ends as any other
        command_line.wait_for_threads()
        command_line.end()
        os._exit(code & 0xFF)
    script_report.flush()
    if code:
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True)
    command_line.wait_for_threads()
    if not code and here.finish is None:
        here.report_last_line()
    command_line.end()
    if not code and here.finish is None:
        here.report_end("completed")
    return code


def _end_session(here: Launch, code: int) -> None:
    if code:
        here.note_failure(SystemExit(code))
    elif here.finish is not None:
        here.finish()


def _code_after(error: BaseException, here: Launch, place: RankPlace) -> int:
    """The exit code of a program that raised `error`, which is shown. Raises it again where it is
    ours, or may mean the loss of a peer.
    """
    if _is_rank(here) and isinstance(error, TrainingError):
        here.note_failure(error)
        raise error
    if not here.channel.is_over():  # else the coordinator knows why already
        command_line.show(error)
    if _is_rank(here):
        here.note_failure(error)
        _raise_loss(error, here.channel, place)
    _advise(error)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _place_of(assignment: Assignment, environment: Mapping[str, str]) -> RankPlace:
    record, place = assignment.record, assignment.place
    return RankPlace(
        rank=assignment.rank,
        world_size=record.world_size,
        local_rank=assignment.local_rank,
        local_world_size=place.ranks,
        hosts=len({member.address for member in record.members}),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
    )


def _is_rank(here: Launch) -> bool:
    return os.getpid() == here.process


def _raise_loss(error: BaseException, channel: Channel, place: RankPlace) -> None:
    """Raise an error again that may mean the loss of a peer. Raises PortTakenError when another
    process has taken the port that was chosen for rank 0.
    """
    if not isinstance(error, Exception) or not is_generation_lost(error, channel):
        return
    if not rendezvous_check.is_address_in_use(error):
        raise error
    if place.rank == 0 and rendezvous_check.is_taken(error, place.port):
        raise PortTakenError(
            f"port {place.port}, chosen for this program's own store, was taken by another process "
            "before the program listened there; it is started again with another port"
        )


def _advise(error: BaseException) -> None:
    """Write what to change, below the traceback of a listener of the program's own."""
    if isinstance(error, Exception) and rendezvous_check.is_address_in_use(error):
        print(rendezvous_check.OF_TAKEN_ADDRESS, file=sys.stderr, flush=True)


def environment(assignment: Assignment, given: Mapping[str, str], port: int) -> dict[str, str]:
    """The variables that torchrun would set for this rank, where `given` is the environment of the
    worker, and `port` is for rank 0's store.
    """
    record = assignment.record
    place, desired = assignment.place, record.desired
    host = record.store.rpartition(":")[0]
    rank, world_size = str(assignment.rank), str(record.world_size)
    restarts = UNLIMITED_RESTARTS if desired.max_restarts < 0 else desired.max_restarts
    variables = {
        "RANK": rank,
        "LOCAL_RANK": str(assignment.local_rank),
        "GROUP_RANK": str(record.members.index(place)),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(place.ranks),
        "GROUP_WORLD_SIZE": str(len(record.members)),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": desired.job,
        "TORCHELASTIC_RESTART_COUNT": str(record.failures),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 of the program hosts the store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": interface_towards(host),
    }
    if place.ranks > 1:
        variables["OMP_NUM_THREADS"] = "1"  # as torchrun, so that ranks do not fight for CPUs
    kept = {name: given[name] for name in _USERS if given.get(name)}
    return {
        **variables,
        **kept,
        **_of_accelerate(assignment),
        DIRECTORY_VARIABLE: desired.directory,
    }


def _of_accelerate(assignment: Assignment) -> dict[str, str]:
    desired = assignment.record.desired
    if desired.accelerate is None:
        return {}
    size = JobSize(
        desired.min_replicas, desired.max_replicas, desired.replicas, assignment.place.ranks
    )
    return accelerate_config.environment(desired.accelerate, size)
