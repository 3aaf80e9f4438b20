"""Which checkpoints a new generation may start from, newest first. Torch-free."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.catalog import Candidate
from regroup_trainer.checkpoint.layout import Head, Layout
from regroup_trainer.errors import CheckpointError, ConfigurationError
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, SnapshotNumber


@dataclass(frozen=True)
class Selection:
    """What rank 0 found on the volume."""

    parent: GenerationNumber | None
    """The generation that is continued."""
    candidates: tuple[Candidate[Head], ...]
    """The checkpoints to be tried, in this order."""
    scratch: bool
    """Whether to start from scratch when no candidate is whole."""
    without_memory: str
    """Why the memory snapshot in the record must not be used; empty when it may."""


def select(layout: Layout, record: GenerationRecord) -> Selection:
    """Apply the resume policy. Raises CheckpointError, ConfigurationError, OSError."""
    if record.snapshot:
        lineage.require_begun(layout, record.snapshot.number.generation)
    begun = lineage.begun(layout) if layout.lineage.is_dir() else ()
    if not begun:
        _require_untrained(layout, record.desired)
    parent = lineage.parent_of(begun, record.number)
    links = lineage.up_to(layout, parent)
    policy = policy_in_force(links, record.desired)
    ours = tuple(catalog.on_lineage(catalog.glance(layout), links))
    without = (
        _without_memory(record.snapshot.number, policy, layout, ours, links)
        if record.snapshot
        else ""
    )
    match policy.policy:
        case "Latest":
            missed = catalog.has_corrupt(layout) or lineage.had_checkpoint(links)
            return Selection(parent, ours, not ours and not missed, without)
        case "Never":
            return Selection(parent, (), True, without)
        case "Step":
            return Selection(parent, _of_step(ours, policy.step), False, without)
        case "Job":
            raise ConfigurationError(
                "resume.policy: 'Job' is not supported yet: use Latest, Never or Step"
            )


def _require_untrained(layout: Layout, desired: Desired) -> None:
    """Raises OSError, as a stale mount does, where a job that has trained would start from scratch,
    because its folder knows of no generation: its volume may be away, and another one in its place.
    """
    if desired.seed.seconds.get("step") and desired.resume.policy == "Latest":
        why = (
            "no generation, though the job has trained: this is not its folder (bring its volume "
            "back, or set resume.policy: Never to start over)"
        )
        raise OSError(errno.ESTALE, why, str(layout.lineage))


def _without_memory(
    number: SnapshotNumber,
    policy: ResumePolicy,
    layout: Layout,
    candidates: tuple[Candidate[Head], ...],
    links: tuple[lineage.LineageRecord, ...],
) -> str:
    if policy.policy != "Latest":
        return f"resume.policy is {policy.policy}"
    if not lineage.counts(number.step, number.generation, links):
        return (
            f"the memory snapshot of step {number.step} is of generation {number.generation}, an "
            "abandoned line"
        )
    newer = (found.step for found in candidates if found.manifest and found.step > number.step)
    for step in newer:
        if catalog.read_candidate(layout, step).manifest:  # a glance may have missed damage
            return f"the checkpoint of step {step} is newer"
    return ""


def policy_in_force(links: tuple[lineage.LineageRecord, ...], desired: Desired) -> ResumePolicy:
    """The policy to apply. A policy is applied once, by the first generation that has it; later
    ones continue from there. One that begins a restart on request has been given its step for that.
    """
    wanted = desired.resume
    if desired.restart_request and desired.restart_step is not None:
        return wanted
    return ResumePolicy() if links and links[-1].resume == wanted else wanted


def nothing_whole(layout: Layout) -> CheckpointError:
    """The error for a run whose checkpoints are all corrupt or gone. Starting over would hide the
    loss.
    """
    what = (
        f"no checkpoint is left in {layout.checkpoints} though this job has gone on from one before"
    )
    if catalog.has_corrupt(layout):
        what = (
            f"all checkpoints in {layout.checkpoints} are corrupt (they are kept there as "
            ".corrupt-step-...)"
        )
    return CheckpointError(
        f"{what}: restore one from a backup, or set resume.policy: Never to start from scratch"
    )


def _of_step(ours: tuple[Candidate[Head], ...], step: int | None) -> tuple[Candidate[Head], ...]:
    chosen = tuple(found for found in ours if found.step == step)
    if not chosen:
        existing = ", ".join(str(found.step) for found in ours) or "none at all"
        raise CheckpointError(
            f"resume.step: there is no checkpoint of step {step}: choose one of {existing}"
        )
    return chosen
