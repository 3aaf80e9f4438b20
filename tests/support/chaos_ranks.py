"""Simulated ranks and the volume: states, commits, and the checkpoints that count.

A state is defined by the commits that made it. So two ranks are equal if and only if they hold the
same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from regroup_trainer.checkpoint import catalog, lineage, publish
from regroup_trainer.checkpoint.layout import MANIFEST, DataIdentity, Layout, Manifest
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.checkpoint.selection import select
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy
from regroup_trainer.protocol.generation import Decision, GenerationNumber, GenerationRecord

DATA = DataIdentity(fingerprint="f", samples=1, seed=1, global_batch_size=1, sequence_length=1)


@dataclass(frozen=True, eq=False)
class State:
    """Parameters after `step`, by the commit that made them."""

    step: int = 0
    generation: GenerationNumber | None = None
    before: State | None = None
    decision: Decision = Decision.CONTINUE
    """The decision that the commit carried."""

    def history(self) -> Iterator[State]:
        """This state and all before it, the newest first."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.before


class Phase(Enum):
    """Where a rank is in a generation."""

    ENTERING = auto()
    TRAINING = auto()
    PARKED = auto()


@dataclass
class Rank:
    """One rank process.

    Its state was made in generation `made_in`, an older one until the rank has entered its own.
    """

    number: int
    record: GenerationRecord
    state: State | None = None
    made_in: GenerationNumber | None = None
    last: State | None = None
    """The last commit that it applied in `made_in`."""
    proposed: bool = False
    """Whether it has proposed the next step."""
    prepared: bool = False
    """Whether it holds the reduced gradients of that step."""
    unused: frozenset[GenerationNumber] = frozenset()
    phase: Phase = Phase.ENTERING
    decision: Decision = Decision.CONTINUE

    def adopt(self, state: State) -> None:
        """Take over the state that its generation resumes from."""
        self.state, self.made_in, self.last = state, self.record.number, None
        self.proposed, self.prepared, self.unused = False, False, frozenset()
        self.phase = Phase.TRAINING

    def apply(self, commit: State) -> None:
        """Apply the commit of the step that it was prepared for."""
        assert self.prepared, "a step was applied without its gradients"
        assert commit.before is self.state, (
            "a commit was applied to another state than the one it was made for"
        )
        self.state = self.last = commit
        self.proposed = self.prepared = False


Save: TypeAlias = Iterator[None]
"""A save in the process of rank 0. It may be delayed before each `next`.

Raises FencedError, OSError.
"""


@dataclass
class Volume:
    """The shared directory with the product's own files. A checkpoint is only its manifest."""

    layout: Layout
    published: dict[tuple[GenerationNumber, int], State] = field(default_factory=dict)
    """All checkpoints that were ever published."""

    def __post_init__(self) -> None:
        self.layout.lineage.mkdir()
        self.layout.checkpoints.mkdir()

    def begin(
        self, generation: GenerationNumber, parent: GenerationNumber | None, step: int
    ) -> None:
        """Record that a generation begins. Raises FencedError."""
        lineage.begin(
            self.layout,
            LineageRecord(
                generation=generation,
                parent=parent,
                resumed_from_step=step,
                resume=ResumePolicy(),
                data=DATA,
            ),
        )
        catalog.sweep(self.layout, generation)

    def select(self, record: GenerationRecord) -> tuple[GenerationNumber | None, State]:
        """The parent and the state of a generation that resumes from a checkpoint.

        Asserts that it is the newest checkpoint that the lineage ever had.
        """
        selection = select(self.layout, record)
        links = lineage.chain(lineage.read(self.layout), selection.parent)
        ever = [
            state
            for (number, step), state in self.published.items()
            if lineage.counts(step, number, links)
        ]
        newest = max(ever, key=lambda state: state.step, default=ORIGIN)
        manifest = selection.candidates[0].manifest if selection.candidates else None
        found = self.published[manifest.generation, manifest.step] if manifest else ORIGIN
        assert found is newest, (
            f"the checkpoint of step {newest.step} is lost, that of step {found.step} is the newest"
        )
        return selection.parent, found

    def save(self, generation: GenerationNumber, state: State) -> Save:
        """Save as `publish` and `prune` do. Only the newest checkpoint is kept."""
        directory = self.layout.temporary(state.step, generation)
        manifest = _manifest(generation, state.step)
        directory.mkdir()
        (directory / MANIFEST).write_text(manifest.model_dump_json())
        lineage.require_newest(self.layout, generation)
        yield
        publish.give_name(self.layout, manifest, directory)
        if (
            catalog.read_candidate(self.layout, state.step).manifest == manifest
        ):  # else this lineage had published one already
            self.published[generation, state.step] = state
        yield
        lineage.require_newest(self.layout, generation)
        for step in publish.superfluous(self.layout, generation, CheckpointPolicy(keep_last=1)):
            yield
            publish.remove(self.layout, step, generation)


def _manifest(generation: GenerationNumber, step: int) -> Manifest:
    return Manifest(
        step=step,
        position=step,
        tokens=step,
        generation=generation,
        world_size=1,
        strategy="ddp",
        model={},
        data=DATA,
        torch="2",
        time=0.0,
        files={},
    )


ORIGIN = State()
