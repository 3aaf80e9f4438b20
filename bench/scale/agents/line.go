package main

import (
	"encoding/json"
	"errors"
)

var errTooMany = errors.New("too many orders wait for a record")

// Line is a connection of an agent: it makes orders of what arrives. As with real agents, an order
// that follows a begin waits while the record is fetched; only an exit does not.
type Line struct {
	agent    *Agent
	socket   *Socket
	intake   *Intake
	welcomed bool
}

// receive handles a message. An error ends the connection.
func (l *Line) receive(message []byte) error {
	if begin, found := readBegin(message); found {
		return l.begin(begin, message)
	}
	if piece, found := readPiece(message); found {
		return l.take(piece, message)
	}
	var order Order
	if err := json.Unmarshal(message, &order); err != nil {
		l.agent.group.fail("cannot read %.200s", message)
		return err
	}
	switch {
	case order.Kind == "record_wanted":
		return l.answer(order)
	case l.intake == nil || order.Kind == "exit":
		l.handle(order)
	case len(l.intake.held) >= mostHeld:
		return errTooMany
	default:
		l.intake.held = append(l.intake.held, message)
	}
	return nil
}

// begin enters a generation. An agent that does not know its parent fetches the record first.
func (l *Line) begin(begin Begin, message []byte) error {
	if l.intake != nil && l.intake.number == begin.number {
		return nil
	}
	own := l.agent.record()
	if own != nil && own.Number == begin.number {
		return nil
	}
	if own != nil && own.Number == begin.parent {
		if record := l.agent.group.differing(own, begin.number, message); record != nil {
			l.intake = nil
			l.agent.begin(record)
			return nil
		}
	}
	l.intake = &Intake{number: begin.number}
	return l.socket.send(wanted(begin.number, 0))
}

// take notes a piece of the record, and enters the generation once it is whole.
func (l *Line) take(piece Piece, message []byte) error {
	if l.intake == nil || l.intake.number != piece.number {
		return nil
	}
	group := l.agent.group
	record := group.known(piece.number)
	if record == nil {
		var order Order
		if err := json.Unmarshal(message, &order); err != nil {
			return err
		}
		l.intake.text.WriteString(order.Text)
	}
	if piece.piece+1 < piece.pieces {
		return l.socket.send(wanted(piece.number, piece.piece+1))
	}
	held := l.intake.held
	if record == nil {
		record = group.whole(piece.number, l.intake.text.String())
	}
	l.intake = nil
	l.agent.begin(record)
	for _, message := range held {
		if err := l.receive(message); err != nil {
			return err
		}
	}
	return nil
}

// answer sends a piece of the record of its generation to a coordinator that lacks it.
func (l *Line) answer(order Order) error {
	if own := l.agent.record(); own != nil && own.Number.String() == string(order.Number) {
		return l.socket.send(own.piece(order.Piece))
	}
	return nil
}

func (l *Line) handle(order Order) {
	agent := l.agent
	switch order.Kind {
	case "welcome":
		l.welcomed = true
		agent.welcome(order.Term, l.socket)
	case "leave_generation":
		agent.leave(order.Generation)
	case "decide":
		agent.group.decide(order.Generation, order.Decision)
	case "snapshot_complete":
		agent.completed()
	case "exit":
		agent.end()
	case "refused": // it tries again, unless that is of no use
		l.socket.close()
		if order.Final {
			agent.group.fail("refused: %s", order.Reason)
			agent.end()
		}
	}
}
