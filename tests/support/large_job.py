"""A job of many workers at the coordinator's core alone: the messages of its life, in waves.

A wave is what all agents or ranks send upon the same occasion. There are no agents behind them, so
that nothing but the core takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Effect, ReserveNumber
from regroup_trainer.coordinator.hangs import check_stragglers
from regroup_trainer.coordinator.pace import LEAST_REPORTS
from regroup_trainer.protocol.agent_messages import (
    HeldSnapshot,
    HeldSnapshots,
    Hello,
    Leaving,
    RankExit,
    Reports,
    Stack,
)
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import (
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
    Retained,
)
from tests.support.coordinator_simulation import COORDINATOR_NODE, current_record, make_desired

Event = Callable[[], object]
"""One message, or one tick, as it comes to the core."""
GROUP = 8
"""Workers of a replica group, where there are any."""
REPEATED = 100
"""Times that what comes from nobody in particular is repeated."""
PACES_SECONDS = 60.0
"""After which the paces of the ranks are compared, in a job of any size."""


@dataclass
class LargeJob:
    """So many workers with so many ranks each."""

    workers: int
    ranks: int = 1
    now: float = 100.0
    step: int = 0
    core: Coordinator = field(init=False)

    def __post_init__(self) -> None:
        self.start_coordinator(1)

    def start_coordinator(self, term: int) -> None:
        """The first coordinator, or a successor."""
        self.core = Coordinator(term, COORDINATOR_NODE, self.desired(), self.now, 1_000_000.0)

    def desired(self) -> Desired:
        """Half of the workers are enough, so that the core waits for the other half for a while."""
        sizes = {"replicas": self.workers, "max_replicas": self.workers}
        return make_desired(min_replicas=self.workers // 2, steps=10**6, **sizes)

    def waves(self) -> Iterator[tuple[str, list[Event]]]:
        """The waves in their order, each with its name. Carry out one before taking the next."""
        yield "hello", [partial(self.hello, n) for n in range(self.workers)]
        yield "restored", [partial(self.send, n, report) for n, report in self.restored()]
        yield "first progress", self.progress()
        self.pass_time(1.0)
        yield "progress", self.progress()
        yield "progress of an agent", self.progress_of_agents()
        for _ in range(LEAST_REPORTS):
            for send in self.progress_of_agents():
                send()
        yield "paces", [self.compare_paces]
        yield (
            "heartbeat",
            [partial(self.core.on_heartbeat, uid(n), self.now) for n in range(self.workers)],
        )
        yield "tick", [self.tick] * REPEATED
        yield "status", [partial(make_status, self.core.state, 1)] * 2
        yield "snapshots", [partial(self.hold, n) for n in range(self.workers)]
        yield "closed", [partial(self.close, n) for n in range(self.workers)]
        yield "hello again", [partial(self.hello, n, self.record) for n in range(self.workers)]
        yield "loss", [self.lose_last]
        others = range(self.workers - 1)
        yield "hello again after a failure", [partial(self.hello, n, self.record) for n in others]
        yield "tick after it", [self.tick] * REPEATED
        yield "parked", [partial(self.send, n, report) for n, report in self.parked()]
        self.pass_time(4.0)
        yield "replacement", [partial(self.hello, self.workers - 1)]
        yield "restored again", [partial(self.send, n, report) for n, report in self.restored()]
        yield "progress again", self.progress()
        record = self.record
        yield from self.succession()
        self.start_coordinator(3)
        for n in range(self.workers):
            self.hello(n, record)
        yield "progress after it", self.progress()
        self.grow()
        yield "joining", [partial(self.hello, self.workers + n) for n in range(self.workers)]
        yield "stack", self.stacks(lambda _rank: "")
        yield "leaving", [partial(self.leave, n) for n in range(self.workers)]
        yield "finished", [partial(self.send, n, report) for n, report in self.finished()]
        yield from self.departure()
        yield from self.incomplete_group()

    def succession(self) -> Iterator[tuple[str, list[Event]]]:
        """A successor waits for two of the workers, so that it adopts nothing yet."""
        record, progress = self.record, self.progress_of_agents()
        self.start_coordinator(2)
        most = range(self.workers - 2)
        yield "hello to a successor", [partial(self.hello, n, record) for n in most]
        yield "hello to it again", [partial(self.hello, n, record) for n in most]
        yield "progress before adoption", progress[: len(most)]
        yield "half are lost before adoption", [partial(self.lose, range(self.workers // 2))]

    def departure(self) -> Iterator[tuple[str, list[Event]]]:
        """Workers leave as a generation fails, and too few are left for the next one. It needs what
        they alone hold of a snapshot.
        """
        self.start_coordinator(4)
        needs_all = {"revision": 2, "min_replicas": self.workers}
        self.do(self.core.update_desired(self.desired().model_copy(update=needs_all), self.now))
        for n in range(self.workers):
            self.hello(n)
        self.train()
        for n in range(self.workers):
            self.hold(n)
        for n in range(self.workers // 2):
            self.leave(n)
        self.lose_last()
        exits: list[Event] = [partial(self.send, n, report) for n, report in self.exits()]
        yield "rank ends", exits[:-1]
        stay = range(self.workers // 2, self.workers - 1)
        again: list[Event] = [partial(self.hello, n, self.record) for n in stay]
        yield "hello again while a rank is inside", again
        for n in stay:
            self.hold(n)
        yield "all have ended", exits[-1:]
        more = range(self.workers // 2, 3 * self.workers // 4)
        yield "leaving after a failure", [partial(self.leave, n) for n in more]
        yield "tick while they are needed", [self.tick] * REPEATED

    def incomplete_group(self) -> Iterator[tuple[str, list[Event]]]:
        """A worker is lost, and the others of its replica group are spares until it is back."""
        self.start_coordinator(5)
        sizes = {"revision": 2, "replica_group_size": min(GROUP, self.workers // 2)}
        self.do(self.core.update_desired(self.desired().model_copy(update=sizes), self.now))
        for n in range(self.workers):
            self.hello(n)
        self.train()
        whole = self.record
        self.lose_last()
        for n, report in self.parked():
            self.send(n, report)
        self.now += 1.5  # the replacement is waited for no longer
        others = range(self.workers - 1)
        for n in others:
            self.core.on_heartbeat(uid(n), self.now)
        self.tick()
        assert len(self.record.members) < len(whole.members), "the next generation has begun"
        self.train()
        yield "closed beside an incomplete group", [partial(self.close, n) for n in others]
        again: list[Event] = [partial(self.hello, n, self.record) for n in others]
        yield "hello again beside an incomplete group", again

    # --- events -----------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """The coordinator is paused meanwhile: lost contact is not what is looked at here."""
        self.now += seconds
        self.tick()

    def train(self) -> None:
        """All ranks have their state, and make a step."""
        for n, report in self.restored():
            self.send(n, report)
        for send in self.progress():
            send()

    def tick(self) -> None:
        """Time does not pass."""
        self.do(self.core.tick(self.now))

    def hello(self, number: int, record: GenerationRecord | None = None) -> None:
        """An agent connects, perhaps again."""
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            member=uid(number),
            index=number,
            pod=f"gpt-w{number}-1",
            node=f"node-{number}",
            ranks=self.ranks,
            store=f"10.0.0.1:{number}",
            record=record,
            endpoint=f"10.0.0.1:{number}",
        )
        self.do(self.core.on_message(hello, hello.member, self.now))

    def grow(self) -> None:
        """Twice as many workers are wanted."""
        sizes = {"replicas": 2 * self.workers, "max_replicas": 2 * self.workers}
        desired = self.desired().model_copy(update={"revision": 2, **sizes})
        self.do(self.core.update_desired(desired, self.now))

    def close(self, number: int) -> None:
        self.do(self.core.on_closed(uid(number), self.now))

    def compare_paces(self) -> None:
        """All ranks have reported since it was done last. A message or tick does it when due."""
        current = self.core.state.current
        assert current is not None
        check_stragglers(self.core.state, current, self.now + PACES_SECONDS)

    def send(self, number: int, report: Report | Reports) -> None:
        self.do(self.core.on_message(report, uid(number), self.now))

    def hold(self, number: int) -> None:
        """It holds one of the shards of a snapshot, and a copy of the other."""
        snapshot = SnapshotNumber(self.step, self.record.number, self.workers)
        shards = (number, (number + 1) % self.workers)
        held = HeldSnapshots(snapshots=(HeldSnapshot(number=snapshot, shards=shards),))
        self.do(self.core.on_message(held, uid(number), self.now))

    def leave(self, number: int) -> None:
        self.do(self.core.on_message(Leaving(reason="SIGTERM"), uid(number), self.now))

    def lose_last(self) -> None:
        self.lose([self.workers - 1])

    def lose(self, numbers: Iterable[int]) -> None:
        """The operator reports these workers as lost."""
        lost = Lost(members=tuple(uid(number) for number in numbers), reason="node NotReady")
        self.do(self.core.on_lost(lost, self.now))

    def do(self, effects: list[Effect]) -> None:
        """The volume answers at once, and nobody receives a message."""
        for effect in effects:
            if isinstance(effect, ReserveNumber):
                self.do(self.core.on_reserved(effect.number, None, self.now))

    # --- what ranks send --------------------------------------------------------------------------

    @property
    def record(self) -> GenerationRecord:
        """The current generation."""
        return current_record(self.core)

    def places(self) -> Iterator[tuple[int, int]]:
        """The number of a worker and each of its ranks, by worker."""
        for place in self.record.members:
            for rank in place.own_ranks:
                yield place.index, rank

    def progress(self) -> list[Event]:
        """One more step of all ranks, in a message of each."""
        return [partial(self.send, n, report) for n, report in self.made()]

    def progress_of_agents(self) -> list[Event]:
        """One more step of all ranks, in a message of each agent: once a second they send it."""
        own = groupby(self.made(), key=itemgetter(0))
        messages = [(n, Reports(reports=tuple(report for _, report in all_))) for n, all_ in own]
        return [partial(self.send, n, message) for n, message in messages]

    def made(self) -> Iterator[tuple[int, Progress]]:
        self.step += 1
        number, time = self.record.number, 1_000_000.0 + self.now
        report = Progress(generation=number, rank=0, step=self.step, time=time, compute_seconds=0.1)
        for n, rank in self.places():
            yield n, report.model_copy(update={"rank": rank})

    def restored(self) -> Iterator[tuple[int, Report]]:
        number = self.record.number
        for n, rank in self.places():
            yield n, Restored(generation=number, rank=rank, step=self.step)

    def parked(self) -> Iterator[tuple[int, Report]]:
        number = self.record.number
        for n, rank in self.places():
            if n != self.workers - 1:
                kept = Retained(step=self.step)
                yield n, Parked(generation=number, rank=rank, retained=kept)

    def exits(self) -> Iterator[tuple[int, Report]]:
        number = self.record.number
        for n, rank in self.places():
            if n != self.workers - 1:
                yield n, RankExit(generation=number, rank=rank, exit_code=75, cause="peer")

    def stacks(self, text: Callable[[int], str]) -> list[Event]:
        """The stacks of all ranks; `text` makes that of a rank when it is sent."""
        number = self.record.number

        def send(n: int, rank: int) -> None:
            self.send(n, Stack(generation=number, rank=rank, text=text(rank)))

        return [partial(send, n, rank) for n, rank in self.places()]

    def finished(self) -> Iterator[tuple[int, Report]]:
        number = self.record.number
        for n, rank in self.places():
            yield n, Finished(generation=number, rank=rank, step=self.step, reason="stop")


def uid(number: int) -> str:
    """The name of the agent of worker `number`."""
    return f"uid-{number}"
