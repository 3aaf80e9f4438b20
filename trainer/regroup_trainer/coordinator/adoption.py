"""A coordinator that has just started takes over the world that returning agents tell of."""

from __future__ import annotations

from regroup_trainer.contract import GenerationRecord, Hello
from regroup_trainer.coordinator.greeting import echo
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import Break, LastCommit, World

LONGEST_SECONDS = 10.0
"""Who shows life, but says no hello for so long after the others, is given up."""


def adopt(state: State, until: float, now: float) -> bool:
    """Adopt the newest world as soon as all its members are back; from `until` on those who are missing are lost.

    Training never stopped, so a world that is whole goes on under its old number. A member whose heartbeats are heard
    is only late: its connection ended with the former coordinator's, which may take seconds to be noticed.

    Returns False while there is such a world and it must be waited for.
    """
    record = _newest(state)
    if record is None:
        return True
    hellos = [member.hello for member in state.members.values()]
    back = {h.member: h for h in hellos if h.record is not None and h.record.number == record.number}
    missing = [place for place in record.members if place.member not in back]
    only_late = now < until + LONGEST_SECONDS and all(_lives(state, place.member, now) for place in missing)
    if missing and (now < until or only_late):
        return False
    restored = {hello.restored.rank: hello.restored for hello in back.values() if hello.restored is not None}
    state.world = World(record, begun=now, heard=now, moved=now, restored=restored)
    state.resumed += [(told.generation, told.step) for rank, told in restored.items() if rank == 0]
    _adopt_progress(state, list(back.values()), now)
    if missing:
        message = f"worker {missing[0].pod} did not come back after the coordinator's restart"
        state.world.broken = Break(now, "infrastructure", message, missing[0])
    for hello in back.values():
        echo(state, hello, now)
    return True


def _lives(state: State, name: str, now: float) -> bool:
    return now - state.strangers.get(name, float("-inf")) < state.desired.timeout_milliseconds / 1000


def _newest(state: State) -> GenerationRecord | None:
    records = [member.hello.record for member in state.members.values() if member.hello.record is not None]
    return max(records, key=lambda record: record.number, default=None)


def _adopt_progress(state: State, back: list[Hello], now: float) -> None:
    progresses = [hello.progress for hello in back if hello.progress is not None]
    newest = max(progresses, key=lambda progress: progress.step, default=None)
    if newest is not None:
        state.committed = LastCommit(newest.step, newest.time)
        state.started = True
    state.account.adopt(next((progress for progress in progresses if progress.rank == 0), None), now)
