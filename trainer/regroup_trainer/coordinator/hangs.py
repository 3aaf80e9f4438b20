"""Hangs: a world that lives but commits no step. Its ranks are asked where they are before it is ended. Pure.

Collectives hide who is to blame: every rank waits for the one that does not come. So the culprit is looked for in the
stacks: a rank that does not answer at all, else one that is outside torch while others wait inside it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from regroup_trainer.contract import Desired, Diagnose, Stack
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import Break, World

LEAST_SECONDS = 60.0
STEPS = 10
"""A world whose deadline is not given hangs after so many mean steps without one."""
FIRST_STEP_SECONDS = 600.0
"""Least deadline before the first step of a generation, which loads, allocates and compiles."""
ANSWER_SECONDS = 2.0
"""How long to wait for the stacks."""
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def deadline_seconds(world: World, desired: Desired) -> float:
    """How long this world may do nothing; for ever where a user's script has told nothing yet, and may never do so."""
    if world.record.desired.script and not world.restored:
        return math.inf
    given = float(desired.progress_timeout_seconds)
    if world.progress is None:
        return max(given, FIRST_STEP_SECONDS)
    return given or max(LEAST_SECONDS, STEPS * world.step_seconds(world.progress))


def watch(state: State, world: World, now: float) -> None:
    """Ask where the ranks are when nothing was done for too long; break the world when they have answered."""
    idle = now - world.moved
    if world.diagnosed is not None and world.moved > world.diagnosed:
        world.diagnosed, world.stacks = None, {}
    if world.diagnosed is None:
        if idle > deadline_seconds(world, state.desired):
            _ask(state, world, idle, now)
    elif len(world.stacks) == world.record.world_size or now - world.diagnosed > ANSWER_SECONDS:
        _end(state, world, now)


def _ask(state: State, world: World, idle: float, now: float) -> None:
    world.diagnosed = now
    for place in world.record.members:
        state.send(place.member, Diagnose(generation=world.number))
    at = f"after step {world.progress.step}" if world.progress else "before its first step"
    state.tell(now, "HangDetected", f"generation {world.number} has done nothing for {idle:.0f} s {at}", "Warning")


def _end(state: State, world: World, now: float) -> None:
    found = culprit(world.stacks, world.record.world_size)
    place = world.record.place_of_rank(found.rank) if found else None
    who = f"rank {found.rank} on {place.pod} {found.where}" if found and place else "no rank stands out"
    idle = now - world.moved
    message = f"no step for {idle:.0f} s: {who}"
    state.tell(now, "HangDiagnosed", message, "Warning")
    state.detections.append(("hang", idle))
    stuck = found.rank if found else None
    world.broken = Break(now, "hang", message, place, detect_seconds=idle, stuck=stuck)


@dataclass(frozen=True)
class Culprit:
    """The rank for which the others wait."""

    rank: int
    where: str
    """What it does, to be read after its name."""


def culprit(stacks: dict[int, Stack], world_size: int) -> Culprit | None:
    """Who does not come to the collective; None when the stacks don't tell."""
    frames = {rank: frame for rank, stack in sorted(stacks.items()) if (frame := _innermost(stack.text))}
    silent = [rank for rank in range(world_size) if rank not in frames]
    if silent and frames:
        return Culprit(silent[0], "does not answer")
    apart = [rank for rank, (file, _, _) in frames.items() if "/torch/" not in file]
    if len(apart) == world_size > 1:  # where the host waits for a device, no frame of torch shows it
        usual, times = Counter(frames.values()).most_common(1)[0]
        apart = [rank for rank, frame in frames.items() if frame != usual] if times > world_size / 2 else []
    if not apart:
        return None
    file, line, function = frames[apart[0]]
    return Culprit(apart[0], f"is in {function} ({file}:{line})")


def _innermost(text: str) -> tuple[str, str, str] | None:
    """Where the main thread is: file, line, function. Faulthandler calls it current, or writes it last."""
    threads = text.strip().split("\n\n")
    main = next((thread for thread in threads if thread.startswith("Current thread")), threads[-1])
    match = _FRAME.search(main)
    return (match[1], match[2], match[3]) if match else None
