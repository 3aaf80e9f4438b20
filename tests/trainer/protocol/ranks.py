"""Ranks and the volume, told in virtual time: what a state is, how a step is committed, which checkpoints count.

A state is known by the commits that made it, so two ranks are equal if and only if they hold the same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import DataIdentity, Layout
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.config import ResumePolicy
from regroup_trainer.contract import Decision, GenerationNumber, GenerationRecord

DATA = DataIdentity(fingerprint="f", samples=1, seed=1, global_batch_size=1, sequence_length=1)


@dataclass(frozen=True, eq=False)
class State:
    """Parameters after `step`, by the commit that made them."""

    step: int = 0
    generation: GenerationNumber | None = None
    before: State | None = None
    decision: Decision = Decision.CONTINUE
    """What the commit carried."""

    def line(self) -> Iterator[State]:
        """It and all states before it."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.before


class Phase(Enum):
    """Where a rank is in a generation."""

    ENTERING = auto()
    TRAINING = auto()
    STANDING = auto()


@dataclass
class Rank:
    """One rank process. What it holds was made in `made_in`, which is an older generation until it has entered one."""

    number: int
    record: GenerationRecord
    state: State | None = None
    made_in: GenerationNumber | None = None
    last: State | None = None
    """The last commit that it applied in `made_in`."""
    proposed: bool = False
    """Whether it has told what it brings to the next step."""
    prepared: bool = False
    """Whether it has the gradients of all for it."""
    void: frozenset[GenerationNumber] = frozenset()
    phase: Phase = Phase.ENTERING
    decision: Decision = Decision.CONTINUE

    def adopt(self, state: State) -> None:
        """Begin to train in its generation."""
        self.state, self.made_in, self.last = state, self.record.number, None
        self.proposed, self.prepared, self.void = False, False, frozenset()
        self.phase = Phase.TRAINING

    def apply(self, commit: State) -> None:
        """Complete the step that it was prepared for."""
        assert self.prepared, "a step was applied without its gradients"
        assert commit.before is self.state, "a commit was applied to another state than the one it was made for"
        self.state = self.last = commit
        self.proposed = self.prepared = False


@dataclass
class Save:
    """A checkpoint on its way to the volume, in the process of rank 0."""

    generation: GenerationNumber
    state: State
    checked: bool = False
    """Whether it has seen that no newer generation has begun; it may be held up right after that."""


@dataclass
class Volume:
    """The shared directory. Claims and lineage are the product's own files; of checkpoints only the states are kept."""

    layout: Layout
    published: dict[int, tuple[GenerationNumber, State]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout.lineage.mkdir()

    def begin(self, generation: GenerationNumber, parent: GenerationNumber | None, step: int) -> None:
        """Note that a generation begins. Raises FencedError."""
        lineage.begin(
            self.layout,
            LineageRecord(
                generation=generation, parent=parent, resumed_from_step=step, resume=ResumePolicy(), data=DATA
            ),
        )

    def select(self, record: GenerationRecord) -> tuple[GenerationNumber | None, State]:
        """Parent and state for a generation that begins from a checkpoint, as `selection.select`."""
        records = lineage.read(self.layout)
        parent = lineage.parent_of(records, record.number)
        links = lineage.chain(records, parent)
        ours = [state for number, state in self.published.values() if lineage.counts(state.step, number, links)]
        return parent, max(ours, key=lambda state: state.step, default=ORIGIN)

    def publish(self, save: Save) -> None:
        """As the second half of `publish.publish`: a checkpoint of this line stays, one of another is set aside."""
        there = self.published.get(save.state.step)
        links = lineage.chain(lineage.read(self.layout), save.generation)
        if there is None or not lineage.counts(there[1].step, there[0], links):
            self.published[save.state.step] = (save.generation, save.state)


ORIGIN = State()
