"""What an agent knows of its current generation: the fence, and what a hello repeats. Pure."""

from __future__ import annotations

from regroup_trainer.protocol.agent_messages import HeldSnapshot, Hello, RankExit
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import (
    Busy,
    CheckpointSaved,
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
)

HELLO_TEXT = 16 * 1024
"""Characters of all messages of failed ranks in a hello, so that it stays below FRAME_BYTES: each
message is cut to its share.
"""


class AgentState:
    """The state from which a coordinator that has just started rebuilds its own."""

    def __init__(self, environment: AgentEnvironment) -> None:
        self._environment = environment
        self.store = ""
        self.endpoint = ""
        self.snapshots: tuple[HeldSnapshot, ...] = ()
        self.record: GenerationRecord | None = None
        self.highest: GenerationNumber | None = None
        self.newest: dict[int, Progress] = {}
        """The last progress of each rank of the current generation."""
        self.checkpoint: CheckpointSaved | None = None
        self.busy: dict[int, Busy] = {}
        """What ranks of the current generation are busy with until their next step."""
        self.ended: dict[int, RankExit | Finished | Parked] = {}
        self.terminated: set[int] = set()
        """Ranks of the current generation that got a signal to end: their end is no failure."""
        self.past_last_line: set[int] = set()
        """Ranks of the current generation whose program has done its work."""
        self._restored: dict[int, Restored] = {}
        self._reassigned: dict[tuple[GenerationNumber, int], int] = {}
        """Rank of the generation before -> its rank now, for processes that were parked."""

    def begin(self, record: GenerationRecord) -> bool:
        """Enter a generation; False when it is not higher than all that were ever seen."""
        if self.highest is not None and record.number <= self.highest:
            return False
        former, parked = self.record, self.parked()
        self.highest = record.number
        self.record = record
        own = self.local_ranks()
        resident = parked if record.restored_from == "Peers" else {}
        self._reassigned = {
            (former.number, rank): own[place]
            for place, rank in resident.items()
            if former is not None and place < len(own)
        }
        self.newest = {}
        self.busy = {}
        self.ended = {}
        self.terminated = set()
        self.past_last_line = set()
        self._restored = {}
        return True

    def is_current(self, number: GenerationNumber) -> bool:
        """Whether reports of this generation count."""
        return self.record is not None and self.record.number == number

    def rank_now(self, number: GenerationNumber, rank: int) -> int | None:
        """The rank of a process in the current generation; None if it has none there.

        `number` and `rank` are what the process last knew.
        """
        return rank if self.is_current(number) else self._reassigned.get((number, rank))

    def local_ranks(self) -> range:
        """The ranks of the current generation that run here."""
        place = self.record.place_of(self._environment.member) if self.record else None
        return place.own_ranks if place else range(0)

    def running(self) -> list[int]:
        """The local ranks that have not ended."""
        return [rank for rank in self.local_ranks() if rank not in self.ended]

    def parked(self) -> dict[int, int]:
        """Local rank -> rank in the current generation, of processes that wait for the next."""
        ranks = self.local_ranks()
        return {rank - ranks.start: rank for rank in ranks if _is_parked(self.ended.get(rank))}

    def note(self, report: Report) -> None:
        """Keep what a hello must repeat."""
        match report:
            case Restored():
                self._restored[report.rank] = report
            case Progress():
                self.newest[report.rank] = report
                self.busy.pop(report.rank, None)
            case Busy(lasting=True):
                self.busy[report.rank] = report
            case CheckpointSaved():
                self.checkpoint = report
            case RankExit() | Finished() | Parked():
                self.ended.setdefault(report.rank, report)

    def unreported(self, rank: int, step: int, time: float) -> Progress | None:
        """The progress that a rank had not reported when it ended; None when it had reported all.

        `step` and `time` are those of its last commit.
        """
        if self.record is None or rank not in self._restored:
            return None
        unknown = Progress(generation=self.record.number, rank=rank, step=0, time=0.0)
        last = self.newest.get(rank, unknown)
        if step <= last.step:
            return None
        return last.model_copy(update={"step": step, "time": time})

    def hello(self) -> Hello:
        """The first message on every connection to a coordinator."""
        environment = self._environment
        return Hello(
            protocol=PROTOCOL_VERSION,
            member=environment.member,
            index=environment.index,
            pod=environment.pod,
            node=environment.node,
            ranks=environment.ranks,
            store=self.store,
            record=self.record,
            highest=self.highest,
            restored=self._restored[min(self._restored)] if self._restored else None,
            progress=self.newest[min(self.newest)] if self.newest else None,
            checkpoint=self.checkpoint,
            busy=tuple(self.busy.values()),
            ended=self._ended_briefly(),
            endpoint=self.endpoint,
            snapshots=self.snapshots,
        )

    def _ended_briefly(self) -> tuple[RankExit | Finished | Parked, ...]:
        share = HELLO_TEXT // max(1, len(self.ended))
        return tuple(_with_end_of_message(end, share) for end in self.ended.values())


def _with_end_of_message(
    end: RankExit | Finished | Parked, share: int
) -> RankExit | Finished | Parked:
    if not isinstance(end, RankExit) or len(end.message) <= share:
        return end
    return end.model_copy(update={"message": end.message[-share:]})


def _is_parked(end: RankExit | Finished | Parked | None) -> bool:
    return isinstance(end, Parked) or (isinstance(end, Finished) and end.retained is not None)
