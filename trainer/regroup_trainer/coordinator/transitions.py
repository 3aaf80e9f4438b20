"""What is planned for a running generation: its end, decided from what is desired and who is here,
and what somebody asks for: a checkpoint, or a restart from one. Pure.
"""

from __future__ import annotations

from typing import Literal

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure, Transition
from regroup_trainer.coordinator.effects import LookForCheckpoint
from regroup_trainer.coordinator.formation import (
    choose,
    last_holders,
    size_of_next,
)
from regroup_trainer.coordinator.membership import Members
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import Decision, RestoredFrom
from regroup_trainer.protocol.job_status import RequestAnswer
from regroup_trainer.protocol.message import TEXT_LIMIT, named
from regroup_trainer.protocol.rank_messages import CheckpointFailed, CheckpointSaved
from regroup_trainer.protocol.restore_source import describe_source

AGREE_SECONDS = 60.0
"""Ranks that report nothing for so long after a planned decision are ended by force."""
UNMANAGED_SECONDS = 1.0
"""The same for a program without a Session, whatever it reports: it receives no decisions."""


def planned_transition(
    current: CurrentGeneration, members: Members, desired: Desired, node: str
) -> Transition | None:
    """The transition that is wanted now; None when the generation is as it should be."""
    if desired.suspend:
        return Transition(Decision.STOP, "preemption", "the job is to be suspended")
    if any(current.position_of(name) is not None for name in members.leaving):
        if current.transition is not None and len(members.leaving) < _least_for_more(current):
            return current.transition
        return _without_leaving(current, members, desired)
    if not current.running and not current.unmanaged:
        return None
    return _resize(current, members, desired, node) or _new_configuration(current, desired)


def _sigterm(desired: Desired) -> str:
    """The signal, and who usually sends it. A run on one machine has no pods."""
    by_kubelet = " (the pod is being deleted: a drain, an eviction, or by hand)"
    return f"SIGTERM{'' if desired.namespace == 'local' else by_kubelet}"


def _least_for_more(current: CurrentGeneration) -> int:
    """How many members must leave at least to call for more than what is decided: all at the same
    place of their replica groups, or all that there are.
    """
    count, size = len(current.record.members), current.record.desired.replica_group_size
    return count // size if current.decision == Decision.LEAVE else count


def _without_leaving(current: CurrentGeneration, members: Members, desired: Desired) -> Transition:
    positions = [current.position_of(name) for name in members.leaving]
    leaving = [position for position in positions if position is not None]
    first = current.record.members[min(leaving)]
    if len(leaving) == len(current.record.members):
        reason = f"all workers received {_sigterm(desired)}"
        return Transition(Decision.STOP, "preemption", reason, first)
    reason = f"worker {first.pod} on node {first.node} received {_sigterm(desired)}"
    takes_a_part_along = last_holders(current.record, leaving, members.stays)
    decision = Decision.RELOAD if takes_a_part_along else Decision.LEAVE
    return Transition(decision, "preemption", reason, first)


def _keeps_size(current: CurrentGeneration, members: Members, desired: Desired) -> bool:
    """Whether no generation of more or fewer members can follow. Closed connections are counted."""
    size = size_of_next(members.fitting(desired.workers), desired)
    return size in (0, len(current.record.members))


def _keeps_places(current: CurrentGeneration, desired: Desired) -> bool:
    """Whether its members have the same places in a next generation of the same size."""
    group = current.record.desired.replica_group_size
    return current.highest_index < desired.workers and group == desired.replica_group_size


def _resize(
    current: CurrentGeneration, members: Members, desired: Desired, node: str
) -> Transition | None:
    keeps_size = _keeps_size(current, members, desired)
    if keeps_size and _keeps_places(current, desired):
        return None
    if current.transition is not None and not keeps_size and not members.closed:
        return current.transition
    here = {place.member for place in current.record.members}
    candidates = [
        member.hello
        for name, member in members.items()
        if member.leaving is None and (name in here or member.closed_at is None)
    ]
    chosen = {hello.member: hello for hello in choose(candidates, current.record, desired, node)}
    if not chosen or chosen.keys() == here:
        return None
    joining = [hello.pod for name, hello in chosen.items() if name not in here]
    leaving = [place.pod for place in current.record.members if place.member not in chosen]
    parts = [_who(joining, "joins", "join"), _who(leaving, "goes", "go")]
    return Transition(Decision.LEAVE, "resize", " and ".join(part for part in parts if part))


def _who(pods: list[str], does: str, do: str) -> str:
    """A few of these pods and what they do, since each agent is sent it; empty: there are none."""
    return f"{named(pods, len(pods))} {does if len(pods) == 1 else do}" if pods else ""


def _new_configuration(current: CurrentGeneration, desired: Desired) -> Transition | None:
    old = current.record.desired
    if (old.train, old.script, old.checkpoint) == (
        desired.train,
        desired.script,
        desired.checkpoint,
    ):
        return None
    return Transition(Decision.RELOAD, "resize", "the training configuration was changed")


# --- a checkpoint on request ----------------------------------------------------------------------


def request_checkpoint(state: State, current: CurrentGeneration) -> None:
    """Pass a request for a checkpoint to rank 0, once in each generation until it has its answer.

    Ranks that are about to end the generation are not asked, but those of the next one.
    """
    request = state.pending_request
    if not request or current.progress is None or current.decision is not None:
        return
    if current.unmanaged:
        why = "the program has no Session: nothing but itself can save its state"
        state.checkpoint_answer = _over(request, "Refused", why)
    elif current.save_asked is None or current.save_asked[0] != request:
        current.save_asked = request, current.progress.step
        decide = Decide(generation=current.number, decision=Decision.SAVE)
        state.send(current.record.members[0].member, decide)


def answer_request(
    state: State, current: CurrentGeneration, report: CheckpointSaved | CheckpointFailed
) -> None:
    """Note how a save ended that was asked for. One that had begun before is no answer."""
    if isinstance(report, CheckpointFailed) and report.stage == "prune":
        return  # the checkpoint itself is whole
    asked = current.save_asked
    if asked is None or asked[0] != state.pending_request or report.step < asked[1]:
        return
    if isinstance(report, CheckpointSaved):
        text = f"step {report.step} is saved to {report.path}"
        state.checkpoint_answer = _over(asked[0], "Done", text)
    else:
        state.checkpoint_answer = _over(asked[0], "Failed", state.failed_save)


def _over(request: str, outcome: Literal["Done", "Failed", "Refused"], text: str) -> RequestAnswer:
    return RequestAnswer(request=request, outcome=outcome, message=text[:TEXT_LIMIT])


# --- a restart on request -------------------------------------------------------------------------


def request_restart(state: State, current: CurrentGeneration, now: float) -> None:
    """End the generation that trains because somebody asks for a restart from a checkpoint, and
    note what became of the one that begins it.

    Its ranks leave at once, and save nothing: what they have is to be given up.
    """
    request = state.pending_restart
    if not request:
        return
    if current.record.desired.restart_request == request:
        _note_restart(state, current)
    elif current.alive and current.decision is None and current.restored:
        why, is_known = _why_no_restart(state, current)
        if why:
            state.restart_answer = _over(request, "Refused", why)
        elif is_known:
            state.restarting = request
            text = f"somebody asks for a restart from {_checkpoint(state.desired)}"
            state.emit(now, "RestartRequested", text)
            current.failure = Failure(now, "resize", text)


def desired_of_next(state: State, restored_from: RestoredFrom) -> Desired:
    """What the next generation is to be: of a restart, which checkpoint to start from.

    The lineage makes a policy count once, for the first generation that has it. Ranks that read
    their state from the volume are sent the ledger so far: where the job has trained, a folder
    without a generation is not the job's.
    """
    desired = state.desired
    if restored_from == "Checkpoint":
        desired = desired.model_copy(update={"seed": state.account.ledger()})
    if desired.restart_request and not state.restarts_now:
        return desired.model_copy(update={"restart_request": ""})
    step = desired.restart_step if state.restarts_now else None
    if step is None:
        return desired
    return desired.model_copy(update={"resume": ResumePolicy(policy="Step", step=step)})


def _checkpoint(desired: Desired) -> str:
    step = desired.restart_step
    return "the newest checkpoint" if step is None else f"the checkpoint of step {step}"


def _why_no_restart(state: State, current: CurrentGeneration) -> tuple[str, bool]:
    """Why it cannot be; else empty, and whether it is known that it can."""
    if current.unmanaged:
        return "the program has no Session: it loads its state by itself", True
    try:
        step = state.desired.restart_step
    except ValueError as error:
        return str(error), True
    if step is None:
        return "", True
    if (policy := state.desired.resume.policy) != "Latest":
        why = f"spec.resume.policy is {policy}, and would count again afterwards"
        return f"{why}: set it to Latest, or give no step", True
    if state.restart_step_found[0] != state.pending_restart:
        state.restart_step_found = state.pending_restart, None
        state.require(LookForCheckpoint(state.pending_restart, step))
    found = state.restart_step_found[1]
    return f"there is no checkpoint of step {step}" if found is False else "", bool(found)


def _note_restart(state: State, current: CurrentGeneration) -> None:
    """It is done once the state is in place. Ranks that cannot load it end it; then the state comes
    from where it comes after any failure.
    """
    request, first, failure = state.pending_restart, current.restored.get(0), current.failure
    if first is not None:
        source = describe_source(first.restored_from or current.record.restored_from)
        text = f"the ranks started from step {first.step} of {source}"
        state.restart_answer = _over(request, "Done", text)
    elif failure is not None and current.finalized and failure.cause == "application":
        state.restart_answer = _over(request, "Failed", failure.message)
