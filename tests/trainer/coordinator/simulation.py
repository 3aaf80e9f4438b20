"""A job in virtual time: the real coordinator core, agents with the real memory, ranks that only count steps.

Messages arrive at once and in order; what is lost with a connection is lost. Time passes in ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from regroup_trainer.agent.memory import Memory
from regroup_trainer.config import ParallelismConfig, TrainConfig, TrainingConfig
from regroup_trainer.contract import (
    Begin,
    CoordinatorMessage,
    Decide,
    Decision,
    Desired,
    Diagnose,
    Exit,
    Finished,
    GenerationNumber,
    GenerationRecord,
    HeldSnapshots,
    Kept,
    LeaveWorld,
    Leaving,
    Lost,
    Progress,
    RankExit,
    Report,
    Restored,
    SnapshotComplete,
    SnapshotNumber,
    Stack,
    Standing,
)
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Claim, Close, Effect, Send
from regroup_trainer.environment import AgentEnvironment
from regroup_trainer.job_status import Verdict
from regroup_trainer.recovery import outlives_its_world

TICK = 0.05
STEP_SECONDS = 0.1
COORDINATOR_NODE = "node-c"
STUCK_IN_COLLECTIVE = 'Current thread 1 (most recent call first):\n  File "/torch/distributed.py", line 1 in all_reduce'


def make_desired(**changes: Any) -> Desired:
    """Three workers, two at least, four at most; 100 steps."""
    steps, strategy = changes.pop("steps", 100), changes.pop("strategy", "ddp")
    train = TrainConfig(training=TrainingConfig(steps=steps), parallelism=ParallelismConfig(strategy=strategy))
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


def make_memory(number: int, index: int, node: str) -> Memory:
    """Of the n-th agent of a job, which is warm."""
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
    memory = Memory(environment)
    memory.store = f"10.0.0.{number}:2000"
    return memory


@dataclass
class SimulatedAgent:
    """A worker: what its process would do, without the process."""

    index: int
    memory: Memory
    node: str
    alive: bool = True
    reachable: bool = True
    """False: its network is gone, in both directions, without a closed connection."""
    connects: bool = True
    """Whether it can open a connection; its heartbeats do not need it."""
    beats: bool = True
    """Whether its heartbeats arrive; what it says over its connection does all the same."""
    connected: bool = False
    holds_on: bool = False
    """It has not noticed yet that the coordinator of its connection is gone."""
    decision: Decision = Decision.CONTINUE
    ranks_run: bool = False
    stands: bool = False
    """Its rank has left a world that is over, and keeps its state for the next."""
    step: int = 0
    stuck_in: str | None = None
    """Its rank hangs until it is begun anew; this is its stack."""
    killed_at: float | None = None
    """When it kills its rank that hangs, since that does not leave its world."""
    answers: bool = True
    """Whether it tells where its rank is."""
    exit_code: int | None = None
    told_complete: SnapshotNumber | None = None
    """The newest snapshot of which it was told that it is complete everywhere."""
    undelivered: list[CoordinatorMessage] = field(default_factory=list)
    """Sent to it over a connection whose network is gone: TCP delivers it when the network is back."""

    @property
    def name(self) -> str:
        """Its member UID."""
        return self.memory.hello().member

    @property
    def speaks(self) -> bool:
        """Whether the coordinator hears it."""
        return self.alive and self.reachable and self.connected


@dataclass
class Job:
    """The whole of it."""

    desired: Desired = field(default_factory=make_desired)
    now: float = 100.0
    term: int = 1
    agents: dict[str, SimulatedAgent] = field(default_factory=dict)
    claims: set[GenerationNumber] = field(default_factory=set)
    begun: dict[GenerationNumber, GenerationRecord] = field(default_factory=dict)
    resumed: dict[GenerationNumber, int] = field(default_factory=dict)
    """The step whose state each generation began with."""
    saved_step: int = 0
    """Of the newest checkpoint on the volume."""
    lineage: GenerationNumber | None = None
    save_every: int = 10
    pace: dict[int, float] = field(default_factory=dict)
    """Rank -> how much longer than the others it computes; 1 if nothing is said."""
    _born: int = 0
    _ticked: float = 0.0
    _next_step: float = 0.0
    _next_beat: float = 0.0

    def __post_init__(self) -> None:
        self.start_coordinator()

    def start_coordinator(self, term: int | None = None) -> None:
        """A fresh coordinator; every connection to the former is closed, and agents reconnect a moment later."""
        self.term = term or self.term
        self.core = Coordinator(self.term, COORDINATOR_NODE, self.desired, self.now, 1_000_000.0)
        for agent in self.agents.values():
            agent.connected = False

    # --- agents ------------------------------------------------------------------------------------------------------

    def add_agent(self, index: int, node: str | None = None) -> SimulatedAgent:
        """A warm agent says hello."""
        self._born += 1
        node = node or f"node-{index}"
        agent = SimulatedAgent(index, make_memory(self._born, index, node), node)
        self.agents[agent.name] = agent
        self.connect(agent)
        return agent

    def connect(self, agent: SimulatedAgent) -> None:
        """It opens its connection, anew if need be, and says hello."""
        agent.connected = True
        agent.undelivered.clear()
        self._do(self.core.handle(agent.memory.hello(), agent.name, self.now))

    def disconnect(self, agent: SimulatedAgent) -> None:
        """Its connection breaks, and both ends notice."""
        agent.connected = False
        self._do(self.core.closed(agent.name, self.now))

    def crash(self, agent: SimulatedAgent) -> None:
        """The pod dies: its connections close, its peers' collectives fail."""
        agent.alive = False
        peers = [peer for peer in self.agents.values() if peer is not agent and self._same_world(peer, agent)]
        self.disconnect(agent)
        self._peers_fail(peers, agent.memory.record)

    def silence(self, agent: SimulatedAgent) -> None:
        """Its node loses power or network: nothing more is heard of it, and its peers hang."""
        agent.reachable = False

    def hang(self, agent: SimulatedAgent) -> None:
        """Its rank does not come to the next collective."""
        agent.stuck_in = STUCK_IN_COLLECTIVE

    def fail_rank(self, agent: SimulatedAgent, exit_code: int = 1) -> None:
        """Its rank ends with an error; its peers' collectives fail."""
        peers = [peer for peer in self.agents.values() if peer is not agent and self._same_world(peer, agent)]
        self.rank_ends(agent, "error", exit_code)
        self._peers_fail(peers, agent.memory.record)

    def give_up(self, agent: SimulatedAgent, reason: str) -> None:
        """The operator says that a member is gone."""
        self._do(self.core.gone(Lost(members=(agent.name,), reason=reason), self.now))

    def ask_to_leave(self, agent: SimulatedAgent) -> None:
        """SIGTERM."""
        self.say(agent, Leaving(reason="SIGTERM"))

    def say(self, agent: SimulatedAgent, message: Report | Leaving | HeldSnapshots) -> None:
        """A message of an agent arrives, if it can."""
        if isinstance(message, Report):
            agent.memory.note(message)
        if agent.speaks:
            self._do(self.core.handle(message, agent.name, self.now))

    # --- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            self._live()
            if self.now - self._ticked >= self.core.pause(self.now):
                self._ticked = self.now
                self._do(self.core.tick(self.now))

    def pause_coordinator(self, seconds: float) -> None:
        """It is not scheduled for a while; the world goes on."""
        self.now += seconds
        self._do(self.core.tick(self.now))

    def wish(self, **changes: Any) -> None:
        """The spec changes."""
        revision = self.desired.revision + 1
        self.desired = self.desired.model_copy(update={**changes, "revision": revision})
        self._do(self.core.wish(self.desired, self.now))

    # --- what came of it ---------------------------------------------------------------------------------------------

    @property
    def record(self) -> GenerationRecord:
        """The current generation."""
        assert self.core.state.world is not None
        return self.core.state.world.record

    @property
    def indices(self) -> list[int]:
        """Workers of the current generation in rank order."""
        return [place.index for place in self.record.members]

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended."""
        return self.core.state.verdict

    @property
    def step(self) -> int:
        """Steps committed."""
        return self.core.state.committed.step if self.core.state.committed else 0

    # --- inside ------------------------------------------------------------------------------------------------------

    def _same_world(self, one: SimulatedAgent, other: SimulatedAgent) -> bool:
        mine, theirs = one.memory.record, other.memory.record
        return one.ranks_run and other.ranks_run and mine is not None and mine == theirs

    def _peers_fail(self, peers: list[SimulatedAgent], record: GenerationRecord | None) -> None:
        for peer in peers:
            if peer.memory.record == record:
                self._lose_world(peer)

    def _lose_world(self, agent: SimulatedAgent) -> None:
        """Its rank comes out of a collective without a result; it stands by, if its state is worth it."""
        record = agent.memory.record
        if not (agent.alive and agent.ranks_run and record is not None):
            return
        if not outlives_its_world(record.desired.train.parallelism):
            self.rank_ends(agent, "peer", 75)
            return
        agent.ranks_run, agent.stands = False, True
        rank = agent.memory.local_ranks()[0]
        self.say(agent, Standing(generation=record.number, rank=rank, kept=Kept(step=agent.step)))

    def rank_ends(self, agent: SimulatedAgent, cause: Literal["error", "peer"], code: int) -> None:
        record = agent.memory.record
        if not (agent.alive and agent.ranks_run and record is not None):
            return
        agent.ranks_run = False
        rank = agent.memory.local_ranks()[0]
        self.say(agent, RankExit(generation=record.number, rank=rank, exit_code=code, cause=cause))

    def _live(self) -> None:
        for agent in list(self.agents.values()):
            may_connect = agent.reachable and agent.connects and not agent.holds_on
            if agent.alive and may_connect and not agent.connected:
                self.connect(agent)
            self._deliver_all(agent)
            if agent.alive and agent.killed_at is not None and self.now >= agent.killed_at:
                agent.killed_at = None
                self.rank_ends(agent, "peer", 137)
        if self.now >= self._next_beat:
            self._next_beat = self.now + self.desired.heartbeat_milliseconds / 1000
            for agent in self.agents.values():
                if agent.alive and agent.reachable and agent.beats:
                    self.core.heartbeat(agent.name, self.now)
        if self.now >= self._next_step:
            self._next_step = self.now + STEP_SECONDS
            records = [agent.memory.record for agent in self.agents.values() if agent.memory.record is not None]
            for record in {record.number: record for record in records}.values():
                self._train(record)

    def _train(self, record: GenerationRecord) -> None:
        """One step of a world, if all its members are there to make it."""
        members = [self.agents.get(place.member) for place in record.members]
        world = [a for a in members if a is not None and a.alive and a.reachable and a.ranks_run]
        if len(world) < len(record.members) or any(a.memory.record != record for a in world):
            return
        if any(agent.stuck_in is not None for agent in world):
            return
        first = world[0]
        if (
            first.decision in (Decision.LEAVE, Decision.RELOAD, Decision.STOP)
            or first.step >= record.desired.train.training.steps
        ):
            self._finish(record, world, first)
            return
        for rank, agent in enumerate(world):
            agent.step += 1
            report = Progress(generation=record.number, rank=rank, step=agent.step, time=1_000_000.0 + self.now)
            own = STEP_SECONDS / 2 * self.pace.get(rank, 1.0)
            told = {"seconds": {"step": STEP_SECONDS * agent.step}, "compute_seconds": own}
            self.say(agent, report.model_copy(update=told))
        if first.step % self.save_every == 0:
            self.saved_step = first.step

    def _finish(self, record: GenerationRecord, world: list[SimulatedAgent], first: SimulatedAgent) -> None:
        done = first.step >= record.desired.train.training.steps
        reason: Literal["completed", "leave", "stop"] = "stop" if first.decision == Decision.STOP else "leave"
        if done:
            reason = "completed"
        lives_on = reason == "leave" and first.decision == Decision.LEAVE
        lives_on = lives_on and outlives_its_world(record.desired.train.parallelism)
        if not lives_on:
            self.saved_step = first.step
        for rank, agent in enumerate(world):
            agent.ranks_run, agent.stands = False, lives_on
            kept = Kept(step=agent.step) if lives_on else None
            self.say(agent, Finished(generation=record.number, rank=rank, step=agent.step, reason=reason, kept=kept))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Claim(number):
                    self._claim(number)
                case Close(member):
                    if (agent := self.agents.get(member)) is not None:
                        agent.connected = False
                case Send(member, message):
                    agent = self.agents.get(member)
                    if agent is not None and agent.alive and agent.connected:
                        agent.undelivered.append(message)
                        self._deliver_all(agent)

    def _claim(self, number: GenerationNumber) -> None:
        while number in self.claims:
            number = GenerationNumber(number.term, number.n + 1)
        self.claims.add(number)
        self._do(self.core.claimed(number, self.lineage, self.now))

    def _deliver_all(self, agent: SimulatedAgent) -> None:
        while agent.alive and agent.reachable and agent.undelivered:
            self._deliver(agent, agent.undelivered.pop(0))

    def _deliver(self, agent: SimulatedAgent, message: CoordinatorMessage) -> None:
        match message:
            case Begin(record=record):
                assert self.begun.setdefault(record.number, record) == record, "one number, two worlds"
                if agent.memory.begin(record):
                    self._start_ranks(agent, record)
            case Decide() if agent.memory.is_current(message.generation):
                agent.decision = max(agent.decision, message.decision)
            case LeaveWorld() if agent.memory.is_current(message.generation) and agent.stuck_in is None:
                self._lose_world(agent)
            case LeaveWorld() if agent.memory.is_current(message.generation):
                agent.killed_at = self.now + (0.0 if message.stuck in agent.memory.local_ranks() else message.seconds)
            case Diagnose() if agent.answers and agent.memory.is_current(message.generation):
                for rank in agent.memory.local_ranks():
                    text = agent.stuck_in or STUCK_IN_COLLECTIVE
                    self.say(agent, Stack(generation=message.generation, rank=rank, text=text))
            case SnapshotComplete(number=number):
                agent.told_complete = number
            case Exit(code=code):
                agent.alive, agent.connected, agent.exit_code = False, False, code
                self._do(self.core.closed(agent.name, self.now))

    def _start_ranks(self, agent: SimulatedAgent, record: GenerationRecord) -> None:
        place = record.place_of(agent.name)
        agent.decision = Decision.CONTINUE
        agent.stuck_in = agent.killed_at = None
        agent.ranks_run = place is not None
        if place is not None:
            self.lineage = max(self.lineage or record.number, record.number)
            step = self.resumed.setdefault(record.number, self._state_for(record))
            agent.step = step
            self.say(agent, Restored(generation=record.number, rank=place.first_rank, step=step))
        agent.stands = False

    def _state_for(self, record: GenerationRecord) -> int:
        """What the ranks of a world agree on: the newest state that one of them keeps, else snapshot or checkpoint."""
        if record.rung == "L1" and record.snapshot is not None:
            return record.snapshot.number.step
        members = [self.agents[place.member] for place in record.members if place.member in self.agents]
        kept = [agent.step for agent in members if agent.stands and agent.alive]
        return max(kept) if kept and record.rung == "L0" else self.saved_step
