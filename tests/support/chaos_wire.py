"""The chaos with its generations on the wire: every Begin and hello is what a coordinator and an
agent send. What they ask for is delayed, cut off, and lost with the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from regroup_trainer.coordinator.effects import Effect, Send
from regroup_trainer.coordinator.serving.known_records import KnownRecords
from regroup_trainer.protocol.agent_messages import Hello, ShortHello
from regroup_trainer.protocol.coordinator_messages import Begin, sent_message
from regroup_trainer.protocol.generation import RecordPiece, RecordWanted
from regroup_trainer.protocol.record_transfer import OrderReceiver, RecordIntake, RecordPieces
from tests.support.chaos import CoordinatorProcess, Job, Pod
from tests.support.chaos_network import Connection, Direction


@dataclass
class Upstream(Direction):
    """To a coordinator. What agents ask for is put aside."""

    asked: list[RecordWanted] = field(default_factory=list)

    def receive(self, now: float) -> list[BaseModel]:
        """The other messages that have arrived since the last call."""
        arrived = super().receive(now)
        self.asked += [message for message in arrived if isinstance(message, RecordWanted)]
        return [message for message in arrived if not isinstance(message, RecordWanted)]


@dataclass
class Arrival:
    """A hello that waits for the record that it names."""

    connection: Connection
    hello: ShortHello
    intake: RecordIntake


@dataclass(eq=False)
class RecordServer:
    """What a coordinator process knows of records."""

    known: KnownRecords = field(default_factory=KnownRecords)
    arrivals: list[Arrival] = field(default_factory=list)


@dataclass
class WireJob(Job):
    """The job."""

    servers: dict[int, RecordServer] = field(default_factory=dict)
    """By the identity of the coordinator."""
    receivers: dict[str, tuple[Connection, OrderReceiver]] = field(default_factory=dict)
    fetched: int = 0
    """Records that an agent has fetched, or a coordinator."""

    def _server(self, coordinator: CoordinatorProcess) -> RecordServer:
        return self.servers.setdefault(id(coordinator), RecordServer())

    # --- a coordinator ----------------------------------------------------------------------------

    def _do(self, coordinator: CoordinatorProcess, effects: list[Effect]) -> None:
        known = self._server(coordinator).known
        for effect in effects:
            sent = effect
            if isinstance(effect, Send) and isinstance(effect.message, Begin):
                begin = known.begin(effect.message.record)
                sent = Send(effect.member, _over_wire(begin))  # type: ignore[arg-type]
            super()._do(coordinator, [sent])

    def _connect(
        self, coordinator: CoordinatorProcess, connection: Connection, hello: Hello
    ) -> None:
        connection.up = Upstream()
        short, server = hello.shortened(), self._server(coordinator)
        server.arrivals = [one for one in server.arrivals if one.hello.member != short.member]
        number = short.generation
        current = coordinator.core.state.current
        if current is not None and current.number == number:
            server.known.add(current.record)
        if number is None or (record := server.known.get(number)) is not None:
            super()._connect(coordinator, connection, short.with_record(number and record))
            return
        server.arrivals.append(Arrival(connection, short, RecordIntake(number)))
        connection.down.send(server.arrivals[-1].intake.wanted, self.now, self.random)

    def _coordinator_acts(self, coordinator: CoordinatorProcess) -> None:
        server = self._server(coordinator)
        for arrival in list(server.arrivals):
            if arrival.connection.closed_by_agent:
                server.arrivals.remove(arrival)
            for message in arrival.connection.up.receive(self.now):
                self._take_piece(coordinator, arrival, message)
        super()._coordinator_acts(coordinator)
        for connection in coordinator.connections.values():
            assert isinstance(connection.up, Upstream)
            for wanted in connection.up.asked:
                if (piece := server.known.piece(wanted)) is not None:
                    message = sent_message.validate_json(piece)
                    connection.down.send(message, self.now, self.random)
            connection.up.asked.clear()

    def _take_piece(
        self, coordinator: CoordinatorProcess, arrival: Arrival, message: BaseModel
    ) -> None:
        server = self._server(coordinator)
        assert isinstance(message, RecordPiece)
        record = arrival.intake.add(message)
        if record is None:
            arrival.connection.down.send(arrival.intake.wanted, self.now, self.random)
        elif arrival in server.arrivals:
            self.fetched += 1
            server.arrivals.remove(arrival)
            server.known.add(record)
            hello = arrival.hello.with_record(record)
            super()._connect(coordinator, arrival.connection, hello)

    # --- an agent ---------------------------------------------------------------------------------

    def _receive(self, pod: Pod, message: BaseModel) -> None:
        connection = pod.connection
        assert connection is not None
        if isinstance(message, RecordWanted):
            assert pod.agent_state.record is not None
            piece = RecordPieces(pod.agent_state.record).piece(message.piece)
            assert piece is not None
            connection.up.send(piece, self.now, self.random)
            return
        orders, wanted = self._receiver(pod, connection).receive(message)  # type: ignore[arg-type]
        for order in orders:
            self.fetched += isinstance(order, Begin) and isinstance(message, RecordPiece)
            super()._receive(pod, self._shared(order))
        if wanted is not None:
            connection.up.send(wanted, self.now, self.random)

    def _shared(self, order: BaseModel) -> BaseModel:
        """A Begin with the one record of its generation, by which ranks know their peers."""
        if not isinstance(order, Begin):
            return order
        record = self.begun.setdefault(order.record.number, order.record)
        assert record == order.record, "one number, two generations"
        return Begin(record=record)

    def _receiver(self, pod: Pod, connection: Connection) -> OrderReceiver:
        """A new one for each connection."""
        known = self.receivers.get(pod.name)
        if known is None or known[0] is not connection:
            known = connection, OrderReceiver(lambda: pod.agent_state.record)
            self.receivers[pod.name] = known
        return known[1]


def _over_wire(message: BaseModel) -> BaseModel:
    return sent_message.validate_json(message.model_dump_json())
