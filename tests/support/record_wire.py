"""The simulated job, with its generations on the wire: every Begin and hello is what a coordinator
and an agent send, and what these ask for takes time and is lost with the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regroup_trainer.coordinator.effects import Effect, Send
from regroup_trainer.coordinator.serving.known_records import KnownRecords
from regroup_trainer.protocol.agent_messages import (
    HeldSnapshots,
    Hello,
    Leaving,
    Reports,
    ShortHello,
)
from regroup_trainer.protocol.coordinator_messages import Begin, CoordinatorMessage, sent_message
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, RecordWanted
from regroup_trainer.protocol.rank_messages import Report
from regroup_trainer.protocol.record_transfer import OrderReceiver, RecordIntake, RecordPieces
from tests.support.coordinator_simulation import Job, SimulatedAgent


@dataclass
class Traffic:
    """Bytes between a coordinator and its agents."""

    to_agents: int = 0
    to_coordinator: int = 0
    pieces: int = 0
    """Of records, in both directions."""

    @property
    def all(self) -> int:
        """In both directions."""
        return self.to_agents + self.to_coordinator


@dataclass
class WireJob(Job):
    """The job. A coordinator is asked for a piece at each tick."""

    known: KnownRecords = field(default_factory=KnownRecords)
    receivers: dict[str, OrderReceiver] = field(default_factory=dict)
    wanted: dict[str, RecordWanted] = field(default_factory=dict)
    """What agents ask for, to be answered in the next tick."""
    traffic: Traffic = field(default_factory=Traffic)
    asked: list[str] = field(default_factory=list)
    """The agents that a coordinator has asked for a record."""

    def start_coordinator(self, term: int | None = None) -> None:
        """A new process knows no records."""
        self.known, self.wanted = KnownRecords(), {}
        super().start_coordinator(term)

    def connect(self, agent: SimulatedAgent) -> None:
        """Its hello arrives with the number of its generation."""
        self.receivers[agent.name] = OrderReceiver(lambda: agent.state.record)
        self.wanted.pop(agent.name, None)
        agent.connected = True
        agent.undelivered.clear()
        text = agent.state.hello().shortened().model_dump_json()
        self.traffic.to_coordinator += len(text)
        self.say_hello(agent, self._whole(ShortHello.model_validate_json(text), agent))

    def _whole(self, short: ShortHello, agent: SimulatedAgent) -> Hello:
        number = short.generation
        if number is None:
            return short.with_record(None)
        current = self.core.state.current
        known = current.record if current and current.number == number else self.known.get(number)
        return short.with_record(known or self._fetch(agent, number))

    def _fetch(self, agent: SimulatedAgent, number: GenerationNumber) -> GenerationRecord:
        """As a coordinator asks an agent for the record that its hello names."""
        assert agent.state.record is not None
        self.asked.append(agent.name)
        intake, pieces = RecordIntake(number), RecordPieces(agent.state.record)
        while True:
            piece = pieces.piece(intake.wanted.piece)
            assert piece is not None
            self.traffic.to_coordinator += len(piece.model_dump_json())
            self.traffic.pieces += 1
            if (record := intake.add(piece)) is not None:
                self.known.add(record)
                return record

    def send(self, agent: SimulatedAgent, message: Report | Leaving | HeldSnapshots) -> None:
        """Count what an agent sends."""
        if agent.can_send:
            is_report = isinstance(message, Report)
            sent = Reports.model_validate({"reports": [message]}) if is_report else message
            self.traffic.to_coordinator += len(sent.model_dump_json())
        super().send(agent, message)

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send_over_wire(effect.member, effect.message)
            else:
                super()._do([effect])

    def _send_over_wire(self, member: str, message: CoordinatorMessage) -> None:
        agent = self.agents.get(member)
        if agent is None or not agent.alive or not agent.connected:
            return
        sent = self.known.begin(message.record) if isinstance(message, Begin) else message
        self._transmit(agent, sent.model_dump_json().encode())

    def _transmit(self, agent: SimulatedAgent, text: bytes) -> None:
        self.traffic.to_agents += len(text)
        agent.undelivered.append(sent_message.validate_json(text))  # type: ignore[arg-type]
        self._deliver_all(agent)

    def _deliver(self, agent: SimulatedAgent, message: CoordinatorMessage) -> None:
        orders, wanted = self.receivers[agent.name].receive(message)  # type: ignore[arg-type]
        for order in orders:
            super()._deliver(agent, order)
        if wanted is not None and agent.connected:
            self.wanted[agent.name] = wanted

    def _agents_act(self) -> None:
        self._answer()
        super()._agents_act()

    def _answer(self) -> None:
        asking, self.wanted = self.wanted, {}
        for name, wanted in asking.items():
            agent = self.agents[name]
            if not agent.can_send:  # what it asks for arrives when it is back, unless it connects
                self.wanted[name] = wanted
                continue
            self.traffic.to_coordinator += len(wanted.model_dump_json())
            piece = self.known.piece(wanted)
            if piece is not None:
                self.traffic.pieces += 1
                self._transmit(agent, piece)
