"""The whole protocol in virtual time: coordinators, agents, ranks, a volume, and a network that cannot be relied upon.

What decides is the product's own code: the coordinator's core, the agents' memory, `offers.agree`, the rules of the
lineage. What is told here are processes and wires: each does its next step at a moment of its own, so that a commit is
seen by some ranks and not by others, a save is held up between its check and its rename, and a coordinator that was
replaced speaks on. Every choice comes from one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from pydantic import BaseModel

from regroup_trainer import offers
from regroup_trainer.agent.memory import Memory
from regroup_trainer.checkpoint import lineage
from regroup_trainer.config import ParallelismConfig
from regroup_trainer.contract import (
    Begin,
    Decide,
    Decision,
    Desired,
    Exit,
    Finished,
    GenerationNumber,
    GenerationRecord,
    Hello,
    Kept,
    LeaveWorld,
    Leaving,
    Lost,
    Progress,
    RankExit,
    Refused,
    Report,
    Restored,
    Standing,
    Welcome,
)
from regroup_trainer.coordinator import claims
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Claim, Close, Effect, Send
from regroup_trainer.errors import FencedError
from regroup_trainer.offers import Offer
from regroup_trainer.recovery import outlives_its_world
from tests.trainer.coordinator.simulation import COORDINATOR_NODE, make_memory
from tests.trainer.protocol.network import Connection
from tests.trainer.protocol.ranks import ORIGIN, Phase, Rank, Save, State, Volume

TICK = 0.05
SAVE_EVERY = 5
DAZED = 100
"""Ticks."""
LATEST_REQUEST = 1.0
"""Seconds that a request is on its way at most; one that is sent again may arrive twice, and after later ones."""
PACE = 0.4
"""Probability that something which may happen does so in a tick."""


@dataclass(eq=False)
class Pod:
    """An agent with one rank."""

    index: int
    memory: Memory
    alive: bool = True
    frozen: bool = False
    thaws: float = 0.0
    """When it is no longer frozen."""
    dazed: int = 0
    """Ticks in which its rank's threads go on with what they were about to do, before its agent hears what happened."""
    hidden_from: set[int] = field(default_factory=set)
    """Indices of workers that it cannot reach, nor they it."""
    deaf: bool = False
    """Nothing comes to it from a coordinator."""
    mute: bool = False
    """Nothing of it comes to a coordinator."""
    connection: Connection | None = None
    welcomed: bool = False
    unsent: list[BaseModel] = field(default_factory=list)
    rank: Rank | None = None
    fork: Rank | None = None
    """A rank process that has been ordered and does not run yet."""
    free_until: float | None = None
    """When a rank that has to leave its world is killed."""
    saves: list[Save] = field(default_factory=list)
    leaving: bool = False

    @property
    def name(self) -> str:
        """Its member UID."""
        return self.memory.hello().member

    @property
    def runs(self) -> bool:
        """Whether its processes get anything done."""
        return self.alive and not self.frozen

    def mend(self) -> None:
        """Its node and network are well again."""
        self.dazed = DAZED if self.frozen else 0
        self.frozen = self.deaf = self.mute = False
        self.hidden_from.clear()


@dataclass(eq=False)
class Leader:
    """A coordinator's process."""

    core: Coordinator
    alive: bool = True
    ticked: float = 0.0
    connections: dict[str, Connection] = field(default_factory=dict)
    claiming: list[tuple[float, GenerationNumber]] = field(default_factory=list)


@dataclass
class Job:
    """All of it. Call `live` to let time pass, and the other methods to harm it."""

    random: Random
    desired: Desired
    volume: Volume
    now: float = 100.0
    early: bool = False
    """Whether ranks propose a step before they have its gradients."""
    term: int = 1
    pods: list[Pod] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    begun: dict[GenerationNumber, GenerationRecord] = field(default_factory=dict)
    resumed: dict[GenerationNumber, State] = field(default_factory=dict)
    commits: dict[GenerationNumber, State] = field(default_factory=dict)
    """The newest commit of each generation whose sum is complete; some ranks may not have seen it."""
    _born: int = 0
    _next_beat: float = 0.0
    _requests: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """When they arrive at the coordinator of that time."""

    def __post_init__(self) -> None:
        if self.random.random() < 0.5:
            self._live_by_checkpoints()
        self.lead(next_term=False)
        for index in range(self.desired.workers):
            self.add(index)

    def _live_by_checkpoints(self) -> None:
        """Have no rank hold what another does."""
        train = self.desired.train.model_copy(update={"parallelism": ParallelismConfig(strategy="fsdp")})
        self.desired = self.desired.model_copy(update={"train": train})

    # --- what may happen ---------------------------------------------------------------------------------------------

    def add(self, index: int) -> Pod:
        """The operator makes a worker."""
        self._born += 1
        pod = Pod(index, make_memory(self._born, index, f"node-{index}"))
        self.pods.append(pod)
        return pod

    def lead(self, *, next_term: bool) -> Leader:
        """A coordinator begins; one of an older term may live on for a while, unknowing."""
        self.term += int(next_term)
        leader = Leader(Coordinator(self.term, COORDINATOR_NODE, self.desired, self.now, 1_000_000.0))
        self.leaders.append(leader)
        return leader

    def end(self, leader: Leader, *, closing: bool) -> None:
        """A coordinator's process ends, with its connections closed or without a word."""
        leader.alive = False
        for connection in leader.connections.values():
            connection.closed_by_coordinator = closing

    def kill(self, pod: Pod, *, closing: bool) -> None:
        """A pod ends: its connections are closed, or its node has lost its power and nobody is told."""
        pod.alive, pod.rank, pod.fork = False, None, None
        pod.saves.clear()
        if pod.connection is not None:
            pod.connection.closed_by_agent = closing
        pod.frozen = not closing

    def freeze(self, pod: Pod) -> None:
        """A node stands still for a while, with all that it was about to do; rather one that is to publish."""
        pod = next((other for other in self.living if other.saves), pod)
        pod.frozen, pod.thaws = True, self.now + self.random.uniform(5.0, 30.0)

    def make_deaf(self, pod: Pod) -> None:
        """Nothing comes to it from coordinators any more."""
        pod.deaf = True

    def make_mute(self, pod: Pod) -> None:
        """Nothing of it comes to coordinators any more."""
        pod.mute = True

    def part(self, one: Pod, other: Pod) -> None:
        """Two workers do not reach each other any more."""
        if one is not other:
            one.hidden_from.add(other.index)

    def cut_off(self, pod: Pod) -> None:
        """A node loses its network."""
        pod.deaf = pod.mute = True
        pod.hidden_from.update(other.index for other in self.living if other is not pod)

    def mend(self) -> None:
        """All faults stop, and who was asked to leave has had the time to."""
        for pod in self.living:
            if pod.leaving:
                self.kill(pod, closing=True)
            pod.mend()
            pod.dazed = 0
        for leader in self.leaders[:-1]:
            self.end(leader, closing=True)
        if not self.leaders[-1].alive:
            self.lead(next_term=True)

    def give_up(self, pod: Pod) -> None:
        """The operator says that a member is gone."""
        lost = Lost(members=(pod.name,), reason="gone")
        self._request(lambda: self._do(self.leader, self.leader.core.gone(lost, self.now)))

    def wish(self, **changes: int) -> None:
        """The spec changes."""
        revision = self.desired.revision + 1
        self.desired = desired = self.desired.model_copy(update={**changes, "revision": revision})
        self._request(lambda: self._do(self.leader, self.leader.core.wish(desired, self.now)))

    def ask_to_leave(self, pod: Pod) -> None:
        """SIGTERM."""
        pod.leaving = True
        self._say(pod, Leaving(reason="SIGTERM"))

    def end_rank(self, pod: Pod) -> None:
        """A rank process ends with an error."""
        if pod.rank is not None and pod.rank.phase is not Phase.STANDING:
            self._rank_ends(pod, pod.rank, "error", 1)

    @property
    def leader(self) -> Leader:
        """The one that a Service leads to."""
        return self.leaders[-1]

    @property
    def living(self) -> list[Pod]:
        """Pods whose processes may be harmed."""
        return [pod for pod in self.pods if pod.alive]

    @property
    def line(self) -> State:
        """What the newest generation that commits has committed; one that only began adds nothing."""
        return self.commits[max(self.commits)] if self.commits else ORIGIN

    # --- time --------------------------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """Let time pass; the invariants are looked at all the time."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            for pod in self._in_any_order(self.pods):
                self._live_pod(pod)
            for leader in [leader for leader in self.leaders if leader.alive]:
                self._live_leader(leader)
            self._beat()
            self._deliver_requests()
            for record in list(self.begun.values())[-4:]:
                self._live_world(record)

    def _in_any_order(self, pods: list[Pod]) -> list[Pod]:
        return self.random.sample(pods, len(pods))

    def _happens(self) -> bool:
        return self.random.random() < PACE

    def _beat(self) -> None:
        if self.now < self._next_beat:
            return
        self._next_beat = self.now + self.desired.heartbeat_milliseconds / 1000
        for pod in [pod for pod in self.pods if pod.runs and not pod.mute]:
            self._request(partial(self._take_heartbeat, pod))

    def _take_heartbeat(self, pod: Pod) -> None:
        known = self.leader.core.heartbeat(pod.name, self.now)
        if not known and pod.runs and not pod.deaf:
            self._hang_up(pod)

    def _request(self, act: Callable[[], object]) -> None:
        """What is asked over HTTP: unlike a connection, it keeps no order, and whoever hears no answer asks again."""
        for _ in range(self.random.choice((1, 1, 1, 2))):
            self._requests.append((self.now + self.random.random() ** 4 * LATEST_REQUEST, act))

    def _deliver_requests(self) -> None:
        due = [request for request in self._requests if request[0] <= self.now]
        self._requests = [request for request in self._requests if request[0] > self.now]
        for _, act in self.random.sample(due, len(due)):
            if self.leader.alive:
                act()

    # --- coordinators ------------------------------------------------------------------------------------------------

    def _live_leader(self, leader: Leader) -> None:
        for connection in list(leader.connections.values()):
            for message in connection.up.receive(self.now):
                self._do(leader, leader.core.handle(message, connection.member, self.now))
            if connection.closed_by_agent and leader.connections.get(connection.member) is connection:
                del leader.connections[connection.member]
                self._do(leader, leader.core.closed(connection.member, self.now))
        for claim in [claim for claim in leader.claiming if claim[0] <= self.now]:
            leader.claiming.remove(claim)
            number, newest = claims.claim(self.volume.layout.directory, claim[1])
            self._do(leader, leader.core.claimed(number, newest, self.now))
        if self.now - leader.ticked >= leader.core.pause(self.now):
            leader.ticked = self.now
            self._do(leader, leader.core.tick(self.now))

    def _greet(self, leader: Leader, connection: Connection, hello: Hello) -> None:
        """As the server does: a newer connection takes the place of a former one, which is heard no more."""
        former = leader.connections.get(hello.member)
        leader.connections[hello.member] = connection
        if former is not None:
            former.closed_by_coordinator = True
        self._do(leader, leader.core.handle(hello, hello.member, self.now))

    def _do(self, leader: Leader, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Claim(number):
                    leader.claiming.append((self.now + self.random.random() / 2, number))
                case Close(member):
                    if (connection := leader.connections.pop(member, None)) is not None:
                        connection.closed_by_coordinator = True
                case Send(member, message):
                    if (connection := leader.connections.get(member)) is not None:
                        connection.down.send(message, self.now, self.random)

    # --- agents ------------------------------------------------------------------------------------------------------

    def _live_pod(self, pod: Pod) -> None:
        if pod.alive and pod.frozen and self.now > pod.thaws:
            pod.mend()
        if not pod.runs:
            return
        if pod.dazed:
            pod.dazed -= 1
            self._save(pod)
            return
        self._talk(pod)
        if pod.fork is not None and self._happens():
            pod.rank, pod.fork = pod.fork, None
        if pod.free_until is not None:
            self._free(pod, pod.free_until)
        self._save(pod)

    def _talk(self, pod: Pod) -> None:
        connection = pod.connection
        if connection is None:
            if self.leader.alive and not pod.mute and not pod.deaf and self._happens():
                pod.connection = connection = Connection(pod.name)
                self._greet(self.leader, connection, pod.memory.hello())
            return
        connection.up.cut, connection.down.cut = pod.mute, pod.deaf
        for message in connection.down.receive(self.now):
            self._hear(pod, message)
            if pod.connection is not connection:
                return
        if connection.closed_by_coordinator and not pod.deaf:
            self._hang_up(pod)
        elif pod.welcomed:
            for message in pod.unsent:
                connection.up.send(message, self.now, self.random)
            pod.unsent.clear()

    def _hang_up(self, pod: Pod) -> None:
        if pod.connection is not None:
            pod.connection.closed_by_agent = True
        pod.connection, pod.welcomed = None, False

    def _say(self, pod: Pod, message: BaseModel) -> None:
        pod.unsent.append(message)

    def _tell(self, pod: Pod, report: Report) -> None:
        pod.memory.note(report)
        self._say(pod, report)

    def _hear(self, pod: Pod, message: BaseModel) -> None:
        match message:
            case Welcome():
                pod.welcomed = True
                if pod.leaving:
                    self._say(pod, Leaving(reason="SIGTERM"))
            case Refused():
                self._hang_up(pod)
            case Begin(record=record):
                self._enter(pod, record)
            case Decide() if pod.rank is not None and pod.memory.is_current(message.generation):
                pod.rank.decision = max(pod.rank.decision, message.decision)
            case LeaveWorld() if pod.memory.is_current(message.generation):
                pod.free_until = self.now + message.seconds
            case Exit():
                self.kill(pod, closing=True)

    def _enter(self, pod: Pod, record: GenerationRecord) -> None:
        """As `Agent._begin`: the rank that stands is kept on rung L0, any other is made anew."""
        stands = bool(pod.memory.standing())
        known = self.begun.setdefault(record.number, record)
        assert known == record, "one number, two worlds"
        if not pod.memory.begin(record):
            return
        pod.unsent = [message for message in pod.unsent if not isinstance(message, Report)]
        pod.free_until, kept = None, pod.rank
        pod.rank = pod.fork = None
        pod.saves.clear()
        place = record.place_of(pod.name)
        if place is None:
            return
        if record.rung == "L0" and stands and kept is not None:
            kept.number, kept.record, kept.phase, kept.decision = place.first_rank, record, Phase.ENTERING, Decision(0)
            pod.rank = kept
        else:
            pod.fork = Rank(place.first_rank, record)

    def _free(self, pod: Pod, until: float) -> None:
        """As the agent and the rank's own watcher do once a world is over."""
        rank = pod.rank or pod.fork
        if rank is None or rank.phase is Phase.STANDING:
            pod.free_until = None
        elif pod.rank is not None and self._happens():
            self._lose_world(pod, pod.rank)
        elif self.now >= until:
            self._rank_ends(pod, rank, "peer", 137)

    # --- ranks -------------------------------------------------------------------------------------------------------

    def _rank_ends(self, pod: Pod, rank: Rank, cause: str, code: int) -> None:
        pod.rank = pod.fork = pod.free_until = None
        pod.saves.clear()
        end = RankExit(generation=rank.record.number, rank=rank.number, exit_code=code, cause=cause)  # type: ignore[arg-type]
        self._tell(pod, end)

    def _lose_world(self, pod: Pod, rank: Rank) -> None:
        """It comes out of a collective without a result, and waits if what it holds is of use."""
        if rank.state is None or rank.made_in is None or not outlives_its_world(rank.record.desired.train.parallelism):
            self._rank_ends(pod, rank, "peer", 75)
            return
        rank.phase, pod.free_until = Phase.STANDING, None
        kept = Kept(step=rank.state.step, prepared=rank.prepared)
        self._tell(pod, Standing(generation=rank.record.number, rank=rank.number, kept=kept))

    def _members(self, record: GenerationRecord) -> Iterator[tuple[Pod, Rank]]:
        for pod in self.pods:
            if pod.rank is not None and pod.rank.record is record:
                yield pod, pod.rank

    def _live_world(self, record: GenerationRecord) -> None:
        world = list(self._members(record))
        active = [(pod, rank) for pod, rank in world if rank.phase is not Phase.STANDING]
        if not active:
            return
        if len(active) < record.world_size or not self._connected([pod for pod, _ in active]):
            self._go_apart(record, active)
            return
        if all(rank.phase is Phase.ENTERING for _, rank in active) and record.number not in self.resumed:
            if self._happens():
                self._agree(record, active)
            return
        for pod, rank in active:
            if pod.runs and self._happens():
                self._step(pod, rank, record)
        ranks = [rank for _, rank in active]
        proposed = all(rank.proposed and rank.phase is Phase.TRAINING for rank in ranks)
        if proposed and not any(self._is_committed(record, rank) for rank in ranks):
            self._commit(record, ranks)

    def _connected(self, pods: list[Pod]) -> bool:
        return all(pod.runs for pod in pods) and not any(a.index in b.hidden_from for a in pods for b in pods)

    def _go_apart(self, record: GenerationRecord, active: list[tuple[Pod, Rank]]) -> None:
        """Some see what was committed, some that a peer is gone, and those who wait for a silent one see nothing."""
        entered = {place.member for place in record.members if place.member in {pod.name for pod in self.pods}}
        silent = any(pod.frozen or pod.hidden_from for pod in self.pods if pod.name in entered)
        forking = any(pod.fork is not None and pod.fork.record is record for pod in self.pods)
        not_yet = any(
            pod.runs and (pod.memory.highest is None or pod.memory.highest < record.number)
            for pod in self.pods
            if pod.name in entered
        )
        for pod, rank in active:
            if not pod.runs or not self._happens():
                continue
            if self._sees(record, rank) and self._happens():
                self._see(pod, rank, record)
            elif not silent and not forking and not not_yet:
                self._lose_world(pod, rank)

    def _is_committed(self, record: GenerationRecord, rank: Rank) -> bool:
        """Whether all ranks have proposed the step that is this one's next."""
        commit = self.commits.get(record.number)
        return commit is not None and commit.before is rank.state

    def _sees(self, record: GenerationRecord, rank: Rank) -> bool:
        return rank.prepared and self._is_committed(record, rank)

    def _step(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        if rank.phase is Phase.ENTERING:
            self._adopt(pod, rank, record)
        elif rank.prepared:
            if self._sees(record, rank):
                self._see(pod, rank, record)
        elif rank.last is not None and rank.last.decision >= Decision.LEAVE:
            self._finish(pod, rank, record)
        elif not rank.proposed:
            rank.proposed, rank.prepared = True, not self.early
        elif self._is_committed(record, rank):
            rank.prepared = True

    def _agree(self, record: GenerationRecord, active: list[tuple[Pod, Rank]]) -> None:
        """As `survivor.take_over` and `Restorer.restore`: all ranks are there, and rank 0 asks the volume."""
        active.sort(key=lambda member: member[1].number)
        ranks = [rank for _, rank in active]
        for rank in ranks:
            rank.void |= {record.number}
        made = [
            Offer(0, rank.made_in, rank.state.step, rank.prepared, rank.last, rank.void)  # type: ignore[arg-type]
            if rank.state is not None and rank.made_in is not None
            else Offer(0)
            for rank in ranks
        ]
        number = record.number
        try:
            agreement = offers.agree(made) if record.rung == "L0" else None
            if agreement is not None and agreement.generation == self._newest(number, agreement.void):
                state = self._go_on_from(ranks, agreement)
                self.volume.begin(number, agreement.generation, state.step)
            else:
                parent, state = self.volume.select(record)
                self.volume.begin(number, parent, state.step)
        except FencedError:
            for pod, rank in active:
                self._lose_world(pod, rank)
            return
        self._check_resumption(record, ranks, state)
        self.resumed[number] = state

    def _newest(self, number: GenerationNumber, void: frozenset[GenerationNumber]) -> GenerationNumber | None:
        return lineage.newest_committing(self.volume.layout, number, void)

    def _go_on_from(self, ranks: list[Rank], agreement: offers.Agreement) -> State:
        commit: Any = agreement.commit
        for number in sorted(agreement.completing):
            ranks[number].apply(commit)
        for source, destination in agreement.transfers:
            ranks[destination].state = ranks[source].state
        states = {id(rank.state): rank.state for rank in ranks}
        assert len(states) == 1, "ranks go on from different states"
        state = ranks[0].state
        assert state is not None
        assert state.step == agreement.step
        return state

    def _adopt(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        rank.adopt(self.resumed[record.number])
        self._tell(pod, Restored(generation=record.number, rank=rank.number, step=self.resumed[record.number].step))

    def _commit(self, record: GenerationRecord, ranks: list[Rank]) -> None:
        """The sum is complete; who sees it is another matter."""
        before = ranks[0].state
        assert before is not None
        assert all(rank.state is before for rank in ranks), "the ranks of a world hold different states"
        first = next(rank for rank in ranks if rank.number == 0)
        commit = State(before.step + 1, record.number, before, first.decision)
        self.commits[record.number] = commit
        members = {place.member for place in record.members}
        for newer in (number for number in self.commits if number > record.number):
            both = members & {place.member for place in self.begun[newer].members}
            assert not both, f"{record.number} commits after {newer}, and {both} are in both"

    def _see(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        commit = self.commits[record.number]
        rank.apply(commit)
        progress = Progress(generation=record.number, rank=rank.number, step=commit.step, time=1_000_000.0 + self.now)
        self._tell(pod, progress)
        if rank.number == 0 and commit.step % SAVE_EVERY == 0 and not pod.saves:
            pod.saves.append(self.volume.save(record.number, commit))

    def _finish(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        """An agreed end: all ranks have applied the step that carried it."""
        assert rank.last is not None
        leaves = rank.last.decision == Decision.LEAVE
        end = Finished(
            generation=record.number, rank=rank.number, step=rank.last.step, reason="leave" if leaves else "stop"
        )
        if leaves and outlives_its_world(record.desired.train.parallelism):
            rank.phase = Phase.STANDING
            end = end.model_copy(update={"kept": Kept(step=rank.last.step)})
        else:
            pod.rank = None
        self._tell(pod, end)

    def _save(self, pod: Pod) -> None:
        """The save under way goes on."""
        if not pod.saves or self.random.random() > PACE / 16:
            return
        try:
            next(pod.saves[0])
        except (StopIteration, OSError):
            pod.saves.pop(0)
        except FencedError:
            pod.saves.clear()
            if pod.rank is not None:
                self._lose_world(pod, pod.rank)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _check_resumption(self, record: GenerationRecord, ranks: list[Rank], state: State) -> None:
        """Every generation goes on from what the newest one committed, and loses none of it that lives in its ranks."""
        line = set(self.line.line())
        assert state in line, f"{record.number} goes on from step {state.step} of an abandoned line"
        if record.rung == "L0":
            void = frozenset().union(*(rank.void for rank in ranks))
            newest = self._newest(record.number, void)
            alive = max((r.state.step for r in ranks if r.state in line and r.made_in == newest), default=0)
            assert state.step >= alive, f"{record.number} goes on from step {state.step} though step {alive} lives"
