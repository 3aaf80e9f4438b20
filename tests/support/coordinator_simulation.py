"""A job in virtual time: the real coordinator core and agent state, with ranks that count steps.

Messages arrive at once and in order. What is lost with a connection stays lost. Time passes in
ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from regroup_trainer.agent.agent_state import AgentState
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import (
    Close,
    Effect,
    LookForCheckpoint,
    LookForFormer,
    ReserveNumber,
    Send,
)
from regroup_trainer.protocol.agent_messages import HeldSnapshots, Hello, Leaving, RankExit, Stack
from regroup_trainer.protocol.config import ParallelismConfig, TrainConfig, TrainingConfig
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    CoordinatorMessage,
    Decide,
    Diagnose,
    Exit,
    LeaveGeneration,
    Refused,
    SnapshotComplete,
)
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import (
    Decision,
    GenerationNumber,
    GenerationRecord,
    SnapshotNumber,
)
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.rank_messages import (
    Finished,
    HistoryEnd,
    Parked,
    Progress,
    Report,
    Restored,
    Retained,
)
from regroup_trainer.protocol.strategies import STRATEGIES

TICK = 0.05
STEP_SECONDS = 0.1
COORDINATOR_NODE = "node-c"
STUCK_IN_COLLECTIVE = (
    'Current thread 1 (most recent call first):\n  File "/torch/distributed.py", line 1 in '
    "all_reduce"
)


def make_desired(**changes: Any) -> Desired:
    """Three workers, two at least, four at most; 100 steps."""
    steps, strategy = changes.pop("steps", 100), changes.pop("strategy", "ddp")
    group = changes.get("replica_group_size") if STRATEGIES[strategy].has_shard_groups else None
    parallelism = ParallelismConfig(strategy=strategy, shard_group_size=group)
    train = TrainConfig(training=TrainingConfig(steps=steps), parallelism=parallelism)
    fields: dict[str, Any] = {
        "revision": 1,
        "namespace": "default",
        "job": "gpt",
        "replicas": 3,
        "min_replicas": 2,
        "max_replicas": 4,
        "directory": "/volume/gpt",
        "train": train,
    }
    return Desired(**{**fields, **changes})


def make_sharded_config(steps: int) -> TrainConfig:
    """A configuration by which each rank holds a part of the state that no other has."""
    return TrainConfig(
        training=TrainingConfig(steps=steps), parallelism=ParallelismConfig(strategy="fsdp")
    )


def make_agent_state(number: int, index: int, node: str) -> AgentState:
    """The state of the n-th agent of a job, which is warm."""
    environment = AgentEnvironment(
        coordinator_url="http://c:1",
        namespace="default",
        job="gpt",
        member=f"uid-{number}",
        index=index,
        pod=f"gpt-w{index}-{number}",
        node=node,
        address="10.0.0.1",
    )
    state = AgentState(environment)
    state.store, state.endpoint = f"10.0.0.{number}:2000", f"10.0.0.{number}:3000"
    return state


def retained_of(record: GenerationRecord, rank: int, step: int) -> Retained:
    """What a rank keeps of its state: all of it, or its part where a replica group shares one."""
    strategy = STRATEGIES[record.desired.train.parallelism.strategy]
    size = record.desired.replica_group_size if strategy.has_shard_groups else 1
    return Retained(step=step, shard=rank % size, shards=size)


def current_record(core: Coordinator) -> GenerationRecord:
    """The current generation of a coordinator."""
    assert core.state.current is not None
    return core.state.current.record


@dataclass
class SimulatedAgent:
    """A worker: what its processes would do, without the processes."""

    index: int
    state: AgentState
    node: str
    alive: bool = True
    reachable: bool = True
    """False: its network is cut in both directions, without a closed connection."""
    connects: bool = True
    """Whether it can open a connection. Heartbeats do not need one."""
    heartbeats_arrive: bool = True
    """Whether its heartbeats arrive. Messages over its connection do in any case."""
    heartbeat_delay: float = 0.0
    """By how many seconds it says that it sends its heartbeats late."""
    connected: bool = False
    is_asked_to_leave: bool = False
    """Whether its pod is being deleted. The operator makes its replacement at once."""
    keeps_old_connection: bool = False
    """It has not noticed yet that its coordinator is gone."""
    decision: Decision = Decision.CONTINUE
    ranks_run: bool = False
    is_parked: bool = False
    """Its rank has left a generation that is over, and keeps its state for the next."""
    step: int = 0
    stuck_in: str | None = None
    """The stack of its rank, which hangs until the next generation; None: it does not hang."""
    hangs_at_start: bool = False
    """Whether its rank does not come to the first collective of the next generation."""
    hangs_in_step: bool = False
    """Whether its rank hangs in the first step of the next generation, with its state in place."""
    killed_at: float | None = None
    """When it kills its hanging rank, which does not leave its generation."""
    answers: bool = True
    """Whether it answers Diagnose."""
    exit_code: int | None = None
    announced_complete: SnapshotNumber | None = None
    """The newest snapshot that the coordinator announced to it as complete."""
    undelivered: list[CoordinatorMessage] = field(default_factory=list)
    """Sent to it while its network is cut: TCP delivers them when the network is back."""

    @property
    def name(self) -> str:
        """Its member UID."""
        return self.state.hello().member

    @property
    def is_here(self) -> bool:
        """Whether the operator sees a pod of its index that it need not replace."""
        return self.alive and not self.is_asked_to_leave

    @property
    def can_send(self) -> bool:
        """Whether its messages arrive at the coordinator."""
        return self.alive and self.reachable and self.connected


@dataclass
class Job:
    """The simulated job. `wait` lets time pass."""

    desired: Desired = field(default_factory=make_desired)
    now: float = 100.0
    term: int = 1
    agents: dict[str, SimulatedAgent] = field(default_factory=dict)
    reserved: set[GenerationNumber] = field(default_factory=set)
    begun: dict[GenerationNumber, GenerationRecord] = field(default_factory=dict)
    resumed: dict[GenerationNumber, int] = field(default_factory=dict)
    """The step whose state each generation began with."""
    saved_step: int = 0
    """Step of the newest checkpoint on the volume."""
    checkpoints: set[int] = field(default_factory=set)
    """Steps whose checkpoint the coordinator finds on the volume."""
    history_end: HistoryEnd | None = None
    """What a rank 0 that restores its state reads in the history on the volume."""
    lineage: GenerationNumber | None = None
    history_bytes: int = 0
    """Of its newest generation."""
    save_every: int = 10
    step_seconds: float = STEP_SECONDS
    is_unmanaged: bool = False
    """Whether the ranks run a program without a Session: they report what a test sends for them."""
    is_superseded: bool = False
    """Whether the volume has numbers of a higher term: it gives no more of this one."""
    volume_refuses: str = ""
    """Why the volume gives no number; empty when it does."""
    read_until: float | None = None
    """Hellos and signs of life that arrived later wait unread, as the server says; None: none do.
    """
    reported_until: float | None = None
    """The same of reports."""
    pace: dict[int, float] = field(default_factory=dict)
    """Rank -> how much longer than the others it computes; 1 by default."""
    _born: int = 0
    _ticked: float = 0.0
    _next_step: float = 0.0
    _next_heartbeat: float = 0.0

    def __post_init__(self) -> None:
        self.start_coordinator()

    def start_coordinator(self, term: int | None = None) -> None:
        """Start a new coordinator. Connections to the former close, and agents reconnect soon."""
        self.term = term or self.term
        self.core = Coordinator(self.term, COORDINATOR_NODE, self.desired, self.now, 1_000_000.0)
        for agent in self.agents.values():
            agent.connected = False

    # --- agents -----------------------------------------------------------------------------------

    def add_agent(self, index: int, node: str | None = None) -> SimulatedAgent:
        """Add a warm agent, which sends its hello."""
        self._born += 1
        node = node or f"node-{index}"
        agent = SimulatedAgent(index, make_agent_state(self._born, index, node), node)
        self.agents[agent.name] = agent
        self.connect(agent)
        return agent

    def connect(self, agent: SimulatedAgent) -> None:
        """It opens a new connection and sends its hello."""
        agent.connected = True
        agent.undelivered.clear()
        self.say_hello(agent, agent.state.hello())

    def say_hello(self, agent: SimulatedAgent, hello: Hello) -> None:
        """Its hello arrives. One that leaves says so again over each connection."""
        self._do(self.core.on_message(hello, agent.name, self.now))
        if agent.is_asked_to_leave:
            self.ask_to_leave(agent)

    def disconnect(self, agent: SimulatedAgent) -> None:
        """Its connection breaks, and both ends notice."""
        agent.connected = False
        self._do(self.core.on_closed(agent.name, self.now))

    def crash(self, agent: SimulatedAgent) -> None:
        """The pod dies: its connections close, its peers' collectives fail."""
        agent.alive = False
        peers = [
            peer
            for peer in self.agents.values()
            if peer is not agent and self._same_generation(peer, agent)
        ]
        self.disconnect(agent)
        self._peers_fail(peers, agent.state.record)

    def cut_off(self, agent: SimulatedAgent) -> None:
        """Its node loses power or network: nothing of it arrives, and its peers hang."""
        agent.reachable = False

    def hang(self, agent: SimulatedAgent) -> None:
        """Its rank does not come to the next collective."""
        agent.stuck_in = STUCK_IN_COLLECTIVE

    def fail_rank(self, agent: SimulatedAgent, exit_code: int = 1) -> None:
        """Its rank ends with an error; its peers' collectives fail."""
        peers = [
            peer
            for peer in self.agents.values()
            if peer is not agent and self._same_generation(peer, agent)
        ]
        self.rank_ends(agent, "error", exit_code)
        self._peers_fail(peers, agent.state.record)

    def report_lost(self, agent: SimulatedAgent, reason: str) -> None:
        """The operator reports that a member is gone."""
        self._do(self.core.on_lost(Lost(members=(agent.name,), reason=reason), self.now))

    def ask_to_leave(self, agent: SimulatedAgent) -> None:
        """The agent gets SIGTERM, and reports that it leaves."""
        agent.is_asked_to_leave = True
        self.send(agent, Leaving(reason="SIGTERM"))

    def send(self, agent: SimulatedAgent, message: Report | Leaving | HeldSnapshots) -> None:
        """A message of an agent arrives, if it can."""
        if isinstance(message, Report):
            agent.state.note(message)
        if agent.can_send:
            self._do(self.core.on_message(message, agent.name, self.now))

    # --- time -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            self._agents_act()
            if self.now - self._ticked >= self.core.pause(self.now):
                self._ticked = self.now
                self._do(self.core.tick(self.now, self.read_until, self.reported_until))

    def pause_coordinator(self, seconds: float) -> None:
        """The coordinator's process does not run for a while."""
        self.now += seconds
        self._do(self.core.tick(self.now))

    def update_desired(self, **changes: Any) -> None:
        """The spec changes, and the coordinator gets the new revision at once."""
        revision = self.desired.revision + 1
        self.desired = self.desired.model_copy(update={**changes, "revision": revision})
        self._do(self.core.update_desired(self.desired, self.now))

    # --- results ----------------------------------------------------------------------------------

    @property
    def record(self) -> GenerationRecord:
        """The current generation."""
        return current_record(self.core)

    @property
    def indices(self) -> list[int]:
        """Workers of the current generation in rank order."""
        return [place.index for place in self.record.members]

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended."""
        return self.core.state.outcome

    @property
    def step(self) -> int:
        """Steps committed."""
        return self.core.state.committed.step if self.core.state.committed else 0

    # --- inside -----------------------------------------------------------------------------------

    def _same_generation(self, one: SimulatedAgent, other: SimulatedAgent) -> bool:
        mine, theirs = one.state.record, other.state.record
        return one.ranks_run and other.ranks_run and mine is not None and mine == theirs

    def _peers_fail(self, peers: list[SimulatedAgent], record: GenerationRecord | None) -> None:
        for peer in peers:
            if peer.state.record == record:
                self.leave_generation(peer)

    def leave_generation(self, agent: SimulatedAgent) -> None:
        """Its rank leaves a collective without a result. It parks if its state is of use."""
        record = agent.state.record
        if not (agent.alive and agent.ranks_run and record is not None):
            return
        strategy = STRATEGIES[record.desired.train.parallelism.strategy]
        if self.is_unmanaged or not strategy.recoverable_in_place:
            self.rank_ends(agent, "peer", 75)
            return
        agent.ranks_run, agent.is_parked = False, True
        rank = agent.state.local_ranks()[0]
        kept = retained_of(record, rank, agent.step)
        self.send(agent, Parked(generation=record.number, rank=rank, retained=kept))

    def rank_ends(
        self,
        agent: SimulatedAgent,
        cause: Literal["error", "peer", "signal"],
        code: int,
        message: str = "",
    ) -> None:
        """Its rank ends with a code, by a signal as 128 + signal."""
        record = agent.state.record
        if not (agent.alive and agent.ranks_run and record is not None):
            return
        agent.ranks_run = False
        rank = agent.state.local_ranks()[0]
        signal = code - 128 if cause == "signal" else None
        number = record.number
        fields = {"exit_code": code, "signal": signal, "cause": cause, "message": message}
        self.send(agent, RankExit.model_validate({"generation": number, "rank": rank, **fields}))

    def _agents_act(self) -> None:
        for agent in list(self.agents.values()):
            may_connect = agent.reachable and agent.connects and not agent.keeps_old_connection
            if agent.alive and may_connect and not agent.connected:
                self.connect(agent)
            self._deliver_all(agent)
            if agent.alive and agent.killed_at is not None and self.now >= agent.killed_at:
                agent.killed_at = None
                self.rank_ends(agent, "peer", 137)
        if self.now >= self._next_heartbeat:
            self._next_heartbeat = self.now + self.desired.heartbeat_milliseconds / 1000
            for agent in self.agents.values():
                if agent.alive and agent.reachable and agent.heartbeats_arrive:
                    self.core.on_heartbeat(agent.name, self.now, agent.heartbeat_delay)
        if self.now >= self._next_step:
            self._next_step = self.now + self.step_seconds
            records = [
                agent.state.record
                for agent in self.agents.values()
                if agent.state.record is not None
            ]
            numbered = {record.number: record for record in records}
            for record in () if self.is_unmanaged else numbered.values():
                self._train(record)

    def _train(self, record: GenerationRecord) -> None:
        """One step of a generation, if all its members can make it."""
        members = [self.agents.get(place.member) for place in record.members]
        running = [a for a in members if a is not None and a.alive and a.reachable and a.ranks_run]
        if len(running) < len(record.members) or any(a.state.record != record for a in running):
            return
        if any(agent.stuck_in is not None for agent in running):
            return
        first = running[0]
        if (
            first.decision in (Decision.LEAVE, Decision.RELOAD, Decision.STOP)
            or first.step >= record.desired.train.training.steps
        ):
            self._finish(record, running, first)
            return
        for rank, agent in enumerate(running):
            agent.step += 1
            report = Progress(
                generation=record.number, rank=rank, step=agent.step, time=1_000_000.0 + self.now
            )
            own = self.step_seconds / 2 * self.pace.get(rank, 1.0)
            fields = {"seconds": {"step": self.step_seconds * agent.step}, "compute_seconds": own}
            self.send(agent, report.model_copy(update=fields))
        if first.step % self.save_every == 0:
            self.saved_step = first.step

    def _finish(
        self, record: GenerationRecord, running: list[SimulatedAgent], first: SimulatedAgent
    ) -> None:
        done = first.step >= record.desired.train.training.steps
        reason: Literal["completed", "leave", "stop"] = (
            "stop" if first.decision == Decision.STOP else "leave"
        )
        if done:
            reason = "completed"
        strategy = STRATEGIES[record.desired.train.parallelism.strategy]
        leaves = reason == "leave" and first.decision == Decision.LEAVE
        retains_state = leaves and strategy.recoverable_in_place
        if not retains_state:
            self.saved_step = first.step
        for rank, agent in enumerate(running):
            agent.ranks_run, agent.is_parked = False, retains_state
            retained = retained_of(record, rank, agent.step) if retains_state else None
            self.send(
                agent,
                Finished(
                    generation=record.number,
                    rank=rank,
                    step=agent.step,
                    reason=reason,
                    retained=retained,
                ),
            )

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ReserveNumber(number):
                    self._reserve(number)
                case LookForFormer(term):
                    if self.lineage is not None and self.lineage.term < term:
                        size = self.history_bytes
                        self._do(self.core.on_former(self.lineage, size, self.now))
                case LookForCheckpoint(request, step):
                    found = step in self.checkpoints
                    self._do(self.core.on_checkpoint_looked_for(request, found, self.now))
                case Close(member):
                    if (agent := self.agents.get(member)) is not None:
                        agent.connected = False
                case Send(member, message):
                    agent = self.agents.get(member)
                    if agent is not None and agent.alive and agent.connected:
                        agent.undelivered.append(message)
                        self._deliver_all(agent)

    def _reserve(self, number: GenerationNumber) -> None:
        if self.volume_refuses:
            self._do(self.core.on_reservation_failed(self.volume_refuses, self.now))
            return
        if self.is_superseded:
            return
        while number in self.reserved:
            number = GenerationNumber(number.term, number.n + 1)
        self.reserved.add(number)
        self._do(self.core.on_reserved(number, self.lineage, self.now))

    def _deliver_all(self, agent: SimulatedAgent) -> None:
        while agent.alive and agent.reachable and agent.undelivered:
            self._deliver(agent, agent.undelivered.pop(0))

    def _deliver(self, agent: SimulatedAgent, message: CoordinatorMessage) -> None:
        match message:
            case Begin(record=record):
                assert self.begun.setdefault(record.number, record) == record, (
                    "one number, two generations"
                )
                if agent.state.begin(record):
                    self._start_ranks(agent, record)
            case Decide() if agent.state.is_current(message.generation):
                agent.decision = max(agent.decision, message.decision)
            case LeaveGeneration() if (
                agent.state.is_current(message.generation) and agent.stuck_in is None
            ):
                self.leave_generation(agent)
            case LeaveGeneration() if agent.state.is_current(message.generation):
                agent.killed_at = self.now + (
                    0.0 if message.stuck in agent.state.local_ranks() else message.seconds
                )
            case Diagnose() if agent.answers and agent.state.is_current(message.generation):
                for rank in agent.state.local_ranks():
                    text = agent.stuck_in or STUCK_IN_COLLECTIVE
                    self.send(agent, Stack(generation=message.generation, rank=rank, text=text))
            case SnapshotComplete(number=number):
                agent.announced_complete = number
            case Refused():
                agent.connected = False
            case Exit(code=code):
                agent.alive, agent.connected, agent.exit_code = False, False, code
                self._do(self.core.on_closed(agent.name, self.now))

    def _start_ranks(self, agent: SimulatedAgent, record: GenerationRecord) -> None:
        place = record.place_of(agent.name)
        agent.decision = Decision.CONTINUE
        has_state, agent.killed_at = not agent.hangs_at_start, None
        agent.stuck_in = None if has_state and not agent.hangs_in_step else STUCK_IN_COLLECTIVE
        agent.hangs_at_start = agent.hangs_in_step = False
        agent.ranks_run = place is not None
        if place is not None:
            self.lineage = max(self.lineage or record.number, record.number)
            step = self.resumed.setdefault(record.number, self._state_for(record))
            agent.step = step
            if not self.is_unmanaged and has_state:
                rank = place.first_rank
                history_end = None if rank else self.history_end
                restored = Restored(
                    generation=record.number, rank=rank, step=step, history_end=history_end
                )
                self.send(agent, restored)
        agent.is_parked = False

    def _state_for(self, record: GenerationRecord) -> int:
        """The step that the ranks agree on: of retained state, a snapshot or the checkpoint."""
        if record.restored_from == "Snapshot" and record.snapshot is not None:
            return record.snapshot.number.step
        members = [
            self.agents[place.member] for place in record.members if place.member in self.agents
        ]
        retained = [agent.step for agent in members if agent.is_parked and agent.alive]
        return max(retained) if retained and record.restored_from == "Peers" else self.saved_step


def start_job(workers: int = 3, **desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """A job whose workers have trained for a second."""
    job = Job(make_desired(**desired))
    agents = [job.add_agent(index) for index in range(workers)]
    job.wait(1.0)
    return job, agents
