"""What an agent remembers of its current generation: the fence, and what a hello echoes. Pure."""

from __future__ import annotations

from regroup_trainer.contract import (
    PROTOCOL_VERSION,
    CheckpointSaved,
    Finished,
    GenerationNumber,
    GenerationRecord,
    HeldSnapshot,
    Hello,
    Progress,
    RankExit,
    Report,
    Restored,
    Standing,
)
from regroup_trainer.environment import AgentEnvironment


class Memory:
    """The state that a coordinator which has just started is rebuilt from."""

    def __init__(self, environment: AgentEnvironment) -> None:
        self._environment = environment
        self.store = ""
        self.endpoint = ""
        self.snapshots: tuple[HeldSnapshot, ...] = ()
        self.record: GenerationRecord | None = None
        self.highest: GenerationNumber | None = None
        self.newest: dict[int, Progress] = {}
        """What each rank of the current generation told last."""
        self.checkpoint: CheckpointSaved | None = None
        self.ended: dict[int, RankExit | Finished | Standing] = {}
        self._restored: dict[int, Restored] = {}
        self._kept: dict[tuple[GenerationNumber, int], int] = {}
        """Rank of the generation before -> what it is now, if its process was to be kept."""

    def begin(self, record: GenerationRecord) -> bool:
        """Enter a generation; False when it is the current one, or a lower one than ever seen: refused for ever."""
        if self.highest is not None and record.number <= self.highest:
            return False
        former, standing = self.record, self.standing()
        self.highest = record.number
        self.record = record
        own = self.local_ranks()
        kept = standing.items() if former is not None and record.rung == "L0" else ()
        self._kept = {(former.number, rank): own[place] for place, rank in kept if former and place < len(own)}
        self.newest = {}
        self.ended = {}
        self._restored = {}
        return True

    def is_current(self, number: GenerationNumber) -> bool:
        """Whether reports of this generation count."""
        return self.record is not None and self.record.number == number

    def rank_now(self, number: GenerationNumber, rank: int) -> int | None:
        """The rank of the current generation that this process is, or was to be; None if it has no part in it."""
        return rank if self.is_current(number) else self._kept.get((number, rank))

    def local_ranks(self) -> range:
        """The ranks of the current generation that run here."""
        place = self.record.place_of(self._environment.member) if self.record else None
        return place.own_ranks if place else range(0)

    def running(self) -> list[int]:
        """Those of them whose part in it has not ended."""
        return [rank for rank in self.local_ranks() if rank not in self.ended]

    def standing(self) -> dict[int, int]:
        """Place here -> rank of the current generation, of those that wait in their processes for the next one."""
        ranks = self.local_ranks()
        return {rank - ranks.start: rank for rank in ranks if _stands(self.ended.get(rank))}

    def note(self, report: Report) -> None:
        """Keep what a hello must be able to repeat."""
        match report:
            case Restored():
                self._restored[report.rank] = report
            case Progress():
                self.newest[report.rank] = report
            case CheckpointSaved():
                self.checkpoint = report
            case RankExit() | Finished() | Standing():
                self.ended.setdefault(report.rank, report)

    def untold(self, rank: int, step: int, time: float) -> Progress | None:
        """The progress of a rank that ended after a commit of which it had not told; None when it had."""
        told = self.newest.get(rank)
        if self.record is None or rank not in self._restored or step <= (told.step if told else 0):
            return None
        last = told or Progress(generation=self.record.number, rank=rank, step=0, time=0.0)
        return last.model_copy(update={"step": step, "time": time})

    def hello(self) -> Hello:
        """The first word to any coordinator."""
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
            ended=tuple(self.ended.values()),
            endpoint=self.endpoint,
            snapshots=self.snapshots,
        )


def _stands(end: RankExit | Finished | Standing | None) -> bool:
    return isinstance(end, Standing) or (isinstance(end, Finished) and end.kept is not None)
