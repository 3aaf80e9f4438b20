"""The whole protocol in virtual time: coordinators, agents, ranks, a volume, and a bad network.

The decisions are the product's own code: the coordinator's core, the state of agents,
`inventory.agree`, the rules of the lineage. The processes and connections are simulated. Each acts
at a moment of its own. So some ranks see a commit and others do not, a save stops between its check
and its rename, and a coordinator that was replaced goes on sending. All choices come from one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from pydantic import BaseModel

from regroup_trainer.agent.agent_state import AgentState
from regroup_trainer.checkpoint import lineage
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Close, Effect, LookForFormer, ReserveNumber, Send
from regroup_trainer.coordinator.serving import number_files
from regroup_trainer.errors import FencedError
from regroup_trainer.protocol.agent_messages import Hello, Leaving, RankExit
from regroup_trainer.protocol.config import ParallelismConfig
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    Decide,
    Exit,
    LeaveGeneration,
    Refused,
    Welcome,
)
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import Decision, GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
    Retained,
)
from regroup_trainer.protocol.strategies import STRATEGIES
from regroup_trainer.recovery import inventory
from regroup_trainer.recovery.inventory import StateInventory
from tests.support.chaos_network import Connection
from tests.support.chaos_ranks import ORIGIN, Phase, Rank, Save, State, Volume
from tests.support.coordinator_simulation import COORDINATOR_NODE, make_agent_state

TICK = 0.05
SAVE_EVERY = 5
LAGGING_TICKS = 100
"""Ticks in which a node that was frozen still acts on what it knew before."""
LATEST_REQUEST = 1.0
"""Longest delay of a request in seconds. A repeated request may arrive twice, and out of order."""
ACT_PROBABILITY = 0.4
"""Probability that a process which may act does so in a tick."""


@dataclass(eq=False)
class Pod:
    """An agent with one rank."""

    index: int
    agent_state: AgentState
    alive: bool = True
    frozen: bool = False
    thaws: float = 0.0
    """When the frozen node runs again."""
    lagging: int = 0
    """Ticks left in which its rank's save goes on, before its agent receives anything."""
    unreachable: set[int] = field(default_factory=set)
    """Indices of workers that it cannot reach, and that cannot reach it."""
    inbound_cut: bool = False
    """Nothing from a coordinator arrives here."""
    outbound_cut: bool = False
    """Nothing from here arrives at a coordinator."""
    connection: Connection | None = None
    welcomed: bool = False
    unsent: list[BaseModel] = field(default_factory=list)
    rank: Rank | None = None
    fork: Rank | None = None
    """A rank process that was ordered and does not run yet."""
    kill_at: float | None = None
    """When a rank that has not left its generation is killed."""
    starved_until: float = 0.0
    """Its rank gets no core before, and so does not leave."""
    saves: list[Save] = field(default_factory=list)
    leaving: bool = False

    @property
    def name(self) -> str:
        """Its member UID."""
        return self.agent_state.hello().member

    @property
    def runs(self) -> bool:
        """Whether its processes get anything done."""
        return self.alive and not self.frozen

    def heal(self) -> None:
        """Its node and network work again."""
        self.lagging = LAGGING_TICKS if self.frozen else 0
        self.frozen = self.inbound_cut = self.outbound_cut = False
        self.unreachable.clear()


@dataclass(eq=False)
class CoordinatorProcess:
    """A coordinator's core, its open connections, and the numbers that it is reserving."""

    core: Coordinator
    alive: bool = True
    ticked: float = 0.0
    connections: dict[str, Connection] = field(default_factory=dict)
    reserving: list[tuple[float, GenerationNumber]] = field(default_factory=list)
    own: GenerationNumber | None = None
    """The first number that it has reserved."""


@dataclass
class Job:
    """The simulated job. `live` lets time pass; the other methods cause faults."""

    random: Random
    desired: Desired
    volume: Volume
    now: float = 100.0
    early: bool = False
    """Whether ranks propose a step before they have its gradients."""
    term: int = 1
    pods: list[Pod] = field(default_factory=list)
    coordinators: list[CoordinatorProcess] = field(default_factory=list)
    begun: dict[GenerationNumber, GenerationRecord] = field(default_factory=dict)
    resumed: dict[GenerationNumber, State] = field(default_factory=dict)
    commits: dict[GenerationNumber, State] = field(default_factory=dict)
    """The newest commit of each generation. Some of its ranks may not have seen it."""
    _born: int = 0
    _next_heartbeat: float = 0.0
    _requests: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """When each arrives, at the coordinator of that time."""

    def __post_init__(self) -> None:
        if self.random.random() < 0.5:
            self._use_checkpoints()
        self.start_coordinator(next_term=False)
        for index in range(self.desired.workers):
            self.add(index)

    def _use_checkpoints(self) -> None:
        """Choose a strategy by which no rank holds what another does."""
        train = self.desired.train.model_copy(
            update={"parallelism": ParallelismConfig(strategy="fsdp")}
        )
        self.desired = self.desired.model_copy(update={"train": train})

    # --- what may happen --------------------------------------------------------------------------

    def add(self, index: int) -> Pod:
        """The operator makes a worker."""
        self._born += 1
        pod = Pod(index, make_agent_state(self._born, index, f"node-{index}"))
        self.pods.append(pod)
        return pod

    def start_coordinator(self, *, next_term: bool) -> CoordinatorProcess:
        """A coordinator starts. One of an older term may go on for a while."""
        self.term += int(next_term)
        coordinator = CoordinatorProcess(
            Coordinator(self.term, COORDINATOR_NODE, self.desired, self.now, 1_000_000.0)
        )
        self.coordinators.append(coordinator)
        return coordinator

    def end(self, coordinator: CoordinatorProcess, *, closing: bool) -> None:
        """The process of a coordinator ends; `closing`: its connections are closed."""
        coordinator.alive = False
        for connection in coordinator.connections.values():
            connection.closed_by_coordinator = closing

    def kill(self, pod: Pod, *, closing: bool) -> None:
        """A pod ends; `closing`: with its connections closed, else its node has lost its power."""
        pod.alive, pod.rank, pod.fork = False, None, None
        pod.saves.clear()
        if pod.connection is not None:
            pod.connection.closed_by_agent = closing
        pod.frozen = not closing

    def freeze(self, pod: Pod) -> None:
        """A node freezes for a while. A pod that is about to publish a save goes first."""
        pod = next((other for other in self.living if other.saves), pod)
        pod.frozen, pod.thaws = True, self.now + self.random.uniform(5.0, 30.0)

    def cut_inbound(self, pod: Pod) -> None:
        """Nothing from coordinators arrives at the pod any more."""
        pod.inbound_cut = True

    def cut_outbound(self, pod: Pod) -> None:
        """Nothing from the pod arrives at coordinators any more."""
        pod.outbound_cut = True

    def part(self, one: Pod, other: Pod) -> None:
        """Two workers cannot reach each other any more."""
        if one is not other:
            one.unreachable.add(other.index)

    def cut_off(self, pod: Pod) -> None:
        """A node loses its network."""
        pod.inbound_cut = pod.outbound_cut = True
        pod.unreachable.update(other.index for other in self.living if other is not pod)

    def heal(self) -> None:
        """All faults stop, and pods that were asked to leave have ended."""
        for pod in self.living:
            if pod.leaving:
                self.kill(pod, closing=True)
            pod.heal()
            pod.lagging = 0
        for coordinator in self.coordinators[:-1]:
            self.end(coordinator, closing=True)
        if not self.coordinators[-1].alive:
            self.start_coordinator(next_term=True)

    def report_lost(self, pod: Pod) -> None:
        """The operator reports that a member is gone."""
        lost = Lost(members=(pod.name,), reason="gone")
        self._request(
            lambda: self._do(self.coordinator, self.coordinator.core.on_lost(lost, self.now))
        )

    def update_desired(self, **changes: int) -> None:
        """The spec changes. The coordinator gets the new revision later, perhaps twice."""
        revision = self.desired.revision + 1
        self.desired = desired = self.desired.model_copy(update={**changes, "revision": revision})
        self._request(
            lambda: self._do(
                self.coordinator, self.coordinator.core.update_desired(desired, self.now)
            )
        )

    def ask_to_leave(self, pod: Pod) -> None:
        """The pod gets SIGTERM, and its agent reports that it leaves."""
        pod.leaving = True
        self._send(pod, Leaving(reason="SIGTERM"))

    def end_rank(self, pod: Pod) -> None:
        """A rank process ends with an error."""
        if pod.rank is not None and pod.rank.phase is not Phase.PARKED:
            self._rank_ends(pod, pod.rank, "error", 1)

    @property
    def coordinator(self) -> CoordinatorProcess:
        """The coordinator to which the Service points."""
        return self.coordinators[-1]

    @property
    def living(self) -> list[Pod]:
        """Pods that have not ended."""
        return [pod for pod in self.pods if pod.alive]

    @property
    def committed(self) -> State:
        """The last commit of the newest generation that has committed anything."""
        return self.commits[max(self.commits)] if self.commits else ORIGIN

    # --- time -------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """Let time pass. Invariants are asserted all the time."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            for pod in self._in_any_order(self.pods):
                self._pod_acts(pod)
            for coordinator in [
                coordinator for coordinator in self.coordinators if coordinator.alive
            ]:
                self._coordinator_acts(coordinator)
            self._send_heartbeats()
            self._deliver_requests()
            for record in list(self.begun.values())[-4:]:
                self._generation_acts(record)

    def _in_any_order(self, pods: list[Pod]) -> list[Pod]:
        return self.random.sample(pods, len(pods))

    def _happens(self) -> bool:
        return self.random.random() < ACT_PROBABILITY

    def _send_heartbeats(self) -> None:
        if self.now < self._next_heartbeat:
            return
        self._next_heartbeat = self.now + self.desired.heartbeat_milliseconds / 1000
        for pod in [pod for pod in self.pods if pod.runs and not pod.outbound_cut]:
            self._request(partial(self._take_heartbeat, pod))

    def _take_heartbeat(self, pod: Pod) -> None:
        known = self.coordinator.core.on_heartbeat(pod.name, self.now)
        if not known and pod.runs and not pod.inbound_cut:
            self._hang_up(pod)

    def _request(self, act: Callable[[], object]) -> None:
        """Send an HTTP request. Requests keep no order, and one without an answer is repeated."""
        for _ in range(self.random.choice((1, 1, 1, 2))):
            self._requests.append((self.now + self.random.random() ** 4 * LATEST_REQUEST, act))

    def _deliver_requests(self) -> None:
        due = [request for request in self._requests if request[0] <= self.now]
        self._requests = [request for request in self._requests if request[0] > self.now]
        for _, act in self.random.sample(due, len(due)):
            if self.coordinator.alive:
                act()

    # --- coordinators -----------------------------------------------------------------------------

    def _coordinator_acts(self, coordinator: CoordinatorProcess) -> None:
        for connection in list(coordinator.connections.values()):
            for message in connection.up.receive(self.now):
                self._do(
                    coordinator, coordinator.core.on_message(message, connection.member, self.now)
                )
            if (
                connection.closed_by_agent
                and coordinator.connections.get(connection.member) is connection
            ):
                del coordinator.connections[connection.member]
                self._do(coordinator, coordinator.core.on_closed(connection.member, self.now))
        for reserve in [reserve for reserve in coordinator.reserving if reserve[0] <= self.now]:
            coordinator.reserving.remove(reserve)
            try:
                number, newest = number_files.reserve(
                    self.volume.layout.directory, reserve[1], coordinator.own
                )
            except number_files.SupersededError:
                self.end(coordinator, closing=True)  # as the server does: it decides nothing more
                return
            coordinator.own = coordinator.own or number
            self._do(coordinator, coordinator.core.on_reserved(number, newest, self.now))
        if self.now - coordinator.ticked >= coordinator.core.pause(self.now):
            coordinator.ticked = self.now
            self._do(coordinator, coordinator.core.tick(self.now))

    def _connect(
        self, coordinator: CoordinatorProcess, connection: Connection, hello: Hello
    ) -> None:
        """As the server does: a newer connection replaces the former one."""
        former = coordinator.connections.get(hello.member)
        coordinator.connections[hello.member] = connection
        if former is not None:
            former.closed_by_coordinator = True
        self._do(coordinator, coordinator.core.on_message(hello, hello.member, self.now))

    def _do(self, coordinator: CoordinatorProcess, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ReserveNumber(number):
                    coordinator.reserving.append((self.now + self.random.random() / 2, number))
                case LookForFormer(term):
                    found = number_files.newest_former(self.volume.layout.directory, term)
                    if found is not None:
                        self._do(coordinator, coordinator.core.on_former(*found, self.now))
                case Close(member):
                    if (connection := coordinator.connections.pop(member, None)) is not None:
                        connection.closed_by_coordinator = True
                case Send(member, message):
                    if (connection := coordinator.connections.get(member)) is not None:
                        connection.down.send(message, self.now, self.random)

    # --- agents -----------------------------------------------------------------------------------

    def _pod_acts(self, pod: Pod) -> None:
        if pod.alive and pod.frozen and self.now > pod.thaws:
            pod.heal()
        if not pod.runs:
            return
        if pod.lagging:
            pod.lagging -= 1
            self._save(pod)
            return
        self._talk(pod)
        if pod.fork is not None and self._happens():
            pod.rank, pod.fork = pod.fork, None
        if pod.kill_at is not None:
            self._let_leave(pod, pod.kill_at)
        self._save(pod)

    def _talk(self, pod: Pod) -> None:
        connection = pod.connection
        if connection is None:
            if (
                self.coordinator.alive
                and not pod.outbound_cut
                and not pod.inbound_cut
                and self._happens()
            ):
                pod.connection = connection = Connection(pod.name)
                self._connect(self.coordinator, connection, pod.agent_state.hello())
            return
        connection.up.cut, connection.down.cut = pod.outbound_cut, pod.inbound_cut
        for message in connection.down.receive(self.now):
            self._receive(pod, message)
            if pod.connection is not connection:
                return
        if connection.closed_by_coordinator and not pod.inbound_cut:
            self._hang_up(pod)
        elif pod.welcomed:
            for message in pod.unsent:
                connection.up.send(message, self.now, self.random)
            pod.unsent.clear()

    def _hang_up(self, pod: Pod) -> None:
        if pod.connection is not None:
            pod.connection.closed_by_agent = True
        pod.connection, pod.welcomed = None, False

    def _send(self, pod: Pod, message: BaseModel) -> None:
        pod.unsent.append(message)

    def _report(self, pod: Pod, report: Report) -> None:
        pod.agent_state.note(report)
        self._send(pod, report)

    def _receive(self, pod: Pod, message: BaseModel) -> None:
        match message:
            case Welcome():
                pod.welcomed = True
                if pod.leaving:
                    self._send(pod, Leaving(reason="SIGTERM"))
            case Refused():
                self._hang_up(pod)
            case Begin(record=record):
                self._enter(pod, record)
            case Decide() if pod.rank is not None and pod.agent_state.is_current(
                message.generation
            ):
                pod.rank.decision = max(pod.rank.decision, message.decision)
            case LeaveGeneration() if pod.agent_state.is_current(message.generation):
                pod.kill_at = self.now + message.seconds
            case Exit():
                self.kill(pod, closing=True)

    def _enter(self, pod: Pod, record: GenerationRecord) -> None:
        """As `Agent._begin`: a parked rank enters if peers restore the state, others are forked."""
        parked = bool(pod.agent_state.parked())
        known = self.begun.setdefault(record.number, record)
        assert known == record, "one number, two generations"
        if not pod.agent_state.begin(record):
            return
        pod.unsent = [message for message in pod.unsent if not isinstance(message, Report)]
        pod.kill_at, resident = None, pod.rank
        pod.rank = pod.fork = None
        pod.saves.clear()
        place = record.place_of(pod.name)
        if place is None:
            return
        if record.restored_from == "Peers" and parked and resident is not None:
            resident.number, resident.record, resident.phase, resident.decision = (
                place.first_rank,
                record,
                Phase.ENTERING,
                Decision(0),
            )
            pod.rank = resident
        else:
            pod.fork = Rank(place.first_rank, record)

    def _let_leave(self, pod: Pod, until: float) -> None:
        """As the agent and the rank's own watcher do once a generation is over."""
        rank = pod.rank or pod.fork
        if rank is None or rank.phase is Phase.PARKED:
            pod.kill_at = None
        elif pod.rank is not None and self.now >= pod.starved_until and self._happens():
            self._leave_generation(pod, pod.rank)
        elif self.now >= until:
            self._rank_ends(pod, rank, "peer", 137)

    # --- ranks ------------------------------------------------------------------------------------

    def _rank_ends(self, pod: Pod, rank: Rank, cause: str, code: int) -> None:
        pod.rank = pod.fork = pod.kill_at = None
        pod.saves.clear()
        end = RankExit(
            generation=rank.record.number,
            rank=rank.number,
            exit_code=code,
            cause=cause,  # type: ignore[arg-type]
        )
        self._report(pod, end)

    def _leave_generation(self, pod: Pod, rank: Rank) -> None:
        """The rank leaves a collective without a result. It parks if its state is of use."""
        if (
            rank.state is None
            or rank.made_in is None
            or not STRATEGIES[rank.record.desired.train.parallelism.strategy].recoverable_in_place
        ):
            self._rank_ends(pod, rank, "peer", 75)
            return
        rank.phase, pod.kill_at = Phase.PARKED, None
        retained = Retained(step=rank.state.step, prepared=rank.prepared)
        self._report(
            pod, Parked(generation=rank.record.number, rank=rank.number, retained=retained)
        )

    def _members(self, record: GenerationRecord) -> Iterator[tuple[Pod, Rank]]:
        for pod in self.pods:
            if pod.rank is not None and pod.rank.record is record:
                yield pod, pod.rank

    def _generation_acts(self, record: GenerationRecord) -> None:
        members = list(self._members(record))
        active = [(pod, rank) for pod, rank in members if rank.phase is not Phase.PARKED]
        if not active:
            return
        if len(active) < record.world_size or not self._connected([pod for pod, _ in active]):
            self._act_apart(record, active)
            return
        if (
            all(rank.phase is Phase.ENTERING for _, rank in active)
            and record.number not in self.resumed
        ):
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
        return all(pod.runs for pod in pods) and not any(
            a.index in b.unreachable for a in pods for b in pods
        )

    def _act_apart(self, record: GenerationRecord, active: list[tuple[Pod, Rank]]) -> None:
        """Some ranks see the last commit, some lose a peer, and some wait for a frozen one."""
        entered = {
            place.member
            for place in record.members
            if place.member in {pod.name for pod in self.pods}
        }
        frozen = any(pod.frozen or pod.unreachable for pod in self.pods if pod.name in entered)
        forking = any(pod.fork is not None and pod.fork.record is record for pod in self.pods)
        not_yet = any(
            pod.runs
            and (pod.agent_state.highest is None or pod.agent_state.highest < record.number)
            for pod in self.pods
            if pod.name in entered
        )
        for pod, rank in active:
            if not pod.runs or not self._happens():
                continue
            if self._can_see(record, rank) and self._happens():
                self._see_commit(pod, rank, record)
            elif not frozen and not forking and not not_yet:
                self._leave_generation(pod, rank)

    def _is_committed(self, record: GenerationRecord, rank: Rank) -> bool:
        """Whether all ranks have proposed the next step of this rank."""
        commit = self.commits.get(record.number)
        return commit is not None and commit.before is rank.state

    def _can_see(self, record: GenerationRecord, rank: Rank) -> bool:
        return rank.prepared and self._is_committed(record, rank)

    def _step(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        if rank.phase is Phase.ENTERING:
            self._adopt(pod, rank, record)
        elif rank.prepared:
            if self._can_see(record, rank):
                self._see_commit(pod, rank, record)
        elif rank.last is not None and rank.last.decision >= Decision.LEAVE:
            self._finish(pod, rank, record)
        elif not rank.proposed:
            rank.proposed, rank.prepared = True, not self.early
        elif self._is_committed(record, rank):
            rank.prepared = True

    def _agree(self, record: GenerationRecord, active: list[tuple[Pod, Rank]]) -> None:
        """As ranks do that enter a generation: all compare what they hold, and rank 0 reads the
        volume.
        """
        active.sort(key=lambda member: member[1].number)
        ranks = [rank for _, rank in active]
        for rank in ranks:
            rank.unused |= {record.number}
        made = [
            StateInventory(
                0,
                rank.made_in,
                rank.state.step,
                rank.prepared,
                rank.last,  # type: ignore[arg-type]
                rank.unused,
            )
            if rank.state is not None and rank.made_in is not None
            else StateInventory(0)
            for rank in ranks
        ]
        number = record.number
        try:
            agreement = inventory.agree(made) if record.restored_from == "Peers" else None
            if agreement is not None and agreement.generation == self._newest(
                number, agreement.unused
            ):
                state = self._recover_from(ranks, agreement)
                self.volume.begin(number, agreement.generation, state.step)
            else:
                parent, state = self.volume.select(record)
                self.volume.begin(number, parent, state.step)
        except FencedError:
            for pod, rank in active:
                self._leave_generation(pod, rank)
            return
        self._check_resumption(record, ranks, state)
        self.resumed[number] = state

    def _newest(
        self, number: GenerationNumber, unused: frozenset[GenerationNumber]
    ) -> GenerationNumber | None:
        return lineage.newest_committing(self.volume.layout, number, unused)

    def _recover_from(self, ranks: list[Rank], agreement: inventory.Agreement) -> State:
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
        self._report(
            pod,
            Restored(
                generation=record.number, rank=rank.number, step=self.resumed[record.number].step
            ),
        )

    def _commit(self, record: GenerationRecord, ranks: list[Rank]) -> None:
        """All ranks have proposed the step. Each of them sees the commit later, or never."""
        before = ranks[0].state
        assert before is not None
        assert all(rank.state is before for rank in ranks), (
            "the ranks of a generation hold different states"
        )
        first = next(rank for rank in ranks if rank.number == 0)
        commit = State(before.step + 1, record.number, before, first.decision)
        self.commits[record.number] = commit
        members = {place.member for place in record.members}
        for newer in (number for number in self.commits if number > record.number):
            both = members & {place.member for place in self.begun[newer].members}
            assert not both, f"{record.number} commits after {newer}, and {both} are in both"

    def _see_commit(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        commit = self.commits[record.number]
        rank.apply(commit)
        progress = Progress(
            generation=record.number,
            rank=rank.number,
            step=commit.step,
            time=1_000_000.0 + self.now,
        )
        self._report(pod, progress)
        if rank.number == 0 and commit.step % SAVE_EVERY == 0 and not pod.saves:
            pod.saves.append(self.volume.save(record.number, commit))

    def _finish(self, pod: Pod, rank: Rank, record: GenerationRecord) -> None:
        """An agreed end: all ranks have applied the step that carried the decision."""
        assert rank.last is not None
        leaves = rank.last.decision == Decision.LEAVE
        end = Finished(
            generation=record.number,
            rank=rank.number,
            step=rank.last.step,
            reason="leave" if leaves else "stop",
        )
        if leaves and STRATEGIES[record.desired.train.parallelism.strategy].recoverable_in_place:
            rank.phase = Phase.PARKED
            end = end.model_copy(update={"retained": Retained(step=rank.last.step)})
        else:
            pod.rank = None
        self._report(pod, end)

    def _save(self, pod: Pod) -> None:
        """The current save goes on."""
        if not pod.saves or self.random.random() > ACT_PROBABILITY / 16:
            return
        try:
            next(pod.saves[0])
        except (StopIteration, OSError):
            pod.saves.pop(0)
        except FencedError:
            pod.saves.clear()
            if pod.rank is not None:
                self._leave_generation(pod, pod.rank)

    # --- what must hold ---------------------------------------------------------------------------

    def _check_resumption(self, record: GenerationRecord, ranks: list[Rank], state: State) -> None:
        """A generation resumes from a commit of the newest one, and from the newest state alive."""
        committed = set(self.committed.history())
        assert state in committed, f"{record.number} resumes from an abandoned step {state.step}"
        if record.restored_from == "Peers":
            unused = frozenset().union(*(rank.unused for rank in ranks))
            newest = self._newest(record.number, unused)
            alive = max(
                (r.state.step for r in ranks if r.state in committed and r.made_in == newest),
                default=0,
            )
            assert state.step >= alive, (
                f"{record.number} resumes from step {state.step} though step {alive} is in memory"
            )
