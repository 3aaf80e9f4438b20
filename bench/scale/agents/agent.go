package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

const (
	firstPauseSeconds   = 0.1
	longestPauseSeconds = 1.0
	queueMessages       = 1000
	beginning           = 256 // bytes of a message by which a known record is recognised
	heartbeatSeconds    = 0.5 // until the first generation says how often
)

// Agent is one agent with its ranks.
type Agent struct {
	group  *Group
	filled chan struct{}

	mu     sync.Mutex
	hello  Hello
	ended  []string
	inside bool // its ranks are in the generation of its record
	outbox [][]byte
	socket *Socket // of a coordinator that has welcomed it
	term   int     // of that coordinator
	gone   bool
	held   string // the newest complete snapshot
	newest string // the newest snapshot
}

func newAgent(group *Group, index int) *Agent {
	return &Agent{group: group, filled: make(chan struct{}, 1), hello: Hello{
		member:  fmt.Sprintf("5d1f6c3e-0000-4000-8000-%012d", index),
		pod:     fmt.Sprintf("%s-w%d-1", group.Job, index),
		node:    fmt.Sprintf("gpu-node-%05d.compute.internal", index),
		address: fmt.Sprintf("10.%d.%d.17", index/250, index%250),
		index:   index,
		ranks:   group.Ranks,
	}}
}

// run keeps the connection up until the agent is gone.
func (a *Agent) run() {
	go (&Heartbeats{agent: a}).run()
	for attempts := 0; !a.isGone(); attempts++ {
		if a.connectOnce() {
			attempts = 0
		}
		time.Sleep(seconds(math.Min(longestPauseSeconds, firstPauseSeconds*math.Pow(2, float64(min(attempts, 30))))))
	}
}

// connectOnce serves a connection to its end, and returns whether the agent was welcomed.
func (a *Agent) connectOnce() (welcomed bool) {
	socket, err := dial(a.group.Address, "/v1/agent", a.group.Token, &a.group.traffic)
	if err != nil {
		return false
	}
	defer socket.close()
	if socket.send(a.greeting()) != nil {
		return false
	}
	over := make(chan struct{})
	defer close(over)
	for {
		message, err := socket.next(beginning, a.group.knows)
		if err != nil {
			break
		}
		if a.receive(message, socket) && !welcomed {
			welcomed = true
			go a.flush(socket, over)
		}
	}
	a.mu.Lock()
	a.socket = nil
	a.mu.Unlock()
	return welcomed
}

func (a *Agent) greeting() []byte {
	a.mu.Lock()
	hello := a.hello
	hello.ended, hello.current = strings.Join(a.ended, ","), a.newest
	a.mu.Unlock()
	return hello.text()
}

// receive obeys a message, and returns whether it is a welcome.
func (a *Agent) receive(message []byte, socket *Socket) (welcome bool) {
	if number, found := begins(message); found {
		if record := a.group.record(number, message); record != nil {
			a.begin(record)
		}
		return false
	}
	var order Order
	if json.Unmarshal(message, &order) != nil {
		a.group.fail("cannot read %.200s", message)
		return false
	}
	switch order.Kind {
	case "welcome":
		a.welcome(order.Term, socket)
	case "leave_generation":
		a.leave(order.Generation)
	case "decide":
		a.group.decide(order.Generation, order.Decision)
	case "snapshot_complete":
		a.completed()
	case "exit":
		a.end()
	case "refused": // it tries again, unless that is of no use
		socket.close()
		if order.Final {
			a.group.fail("refused: %s", order.Reason)
			a.end()
		}
	}
	return order.Kind == "welcome"
}

func (a *Agent) welcome(term int, socket *Socket) {
	a.mu.Lock()
	former := a.term
	a.socket, a.term = socket, term
	a.mu.Unlock()
	a.group.welcomed(former, term)
}

// begin enters a generation: its ranks restore their state at once.
func (a *Agent) begin(record *Record) {
	a.mu.Lock()
	former := a.hello.record
	if former != nil && !record.Number.above(former.Number) || a.gone {
		a.mu.Unlock()
		return
	}
	wasInside, place := a.inside, record.places[a.hello.member]
	a.hello.record, a.inside = record, place.Ranks > 0
	a.ended, a.hello.restored, a.hello.progress = nil, "", ""
	a.outbox = nil
	a.put(heldSnapshots(a.newest))
	step := a.group.steps()
	for rank := place.First; rank < place.First+place.Ranks; rank++ {
		report := restored(record, rank, step)
		a.put(report)
		if rank == place.First {
			a.hello.restored = string(report)
		}
	}
	a.mu.Unlock()
	a.group.begun(former, record, wasInside, place.Ranks > 0)
}

// leave parks the ranks of a generation that has failed.
func (a *Agent) leave(number Number) {
	step := a.group.steps()
	a.over(number, func(rank int) []byte { return parked(number, rank, step) })
}

// over has all ranks leave a generation, each with a report.
func (a *Agent) over(number Number, report func(rank int) []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	record := a.hello.record
	if !a.inside || record.Number != number {
		return
	}
	a.inside = false
	place := record.places[a.hello.member]
	for rank := place.First; rank < place.First+place.Ranks; rank++ {
		text := report(rank)
		a.ended = append(a.ended, string(text))
		a.put(text)
	}
	a.group.left(number)
}

// step reports a step of all ranks.
func (a *Agent) step(record *Record, step int, now float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.inside || a.hello.record != record {
		return
	}
	place := record.places[a.hello.member]
	for rank := place.First; rank < place.First+place.Ranks; rank++ {
		report := progress(record.Number, rank, step, now)
		a.put(report)
		if rank == place.First {
			a.hello.progress = string(report)
		}
	}
}

// hold notes a snapshot of this step, and completed that every member holds it.
func (a *Agent) hold(number Number, step int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest = snapshot(number, step)
	a.put(heldSnapshots(strings.TrimPrefix(a.held+","+a.newest, ",")))
}

func (a *Agent) completed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = a.newest
	a.put(heldSnapshots(a.newest))
}

// put queues a message. The lock is held. As the agent does, it drops the oldest of too many.
func (a *Agent) put(message []byte) {
	if len(a.outbox) >= queueMessages {
		a.outbox = a.outbox[1:]
		a.group.dropped.Add(1)
	}
	a.outbox = append(a.outbox, message)
	a.signal()
}

func (a *Agent) signal() {
	select {
	case a.filled <- struct{}{}:
	default:
	}
}

// flush sends what is queued, until the connection is over.
func (a *Agent) flush(socket *Socket, over chan struct{}) {
	for {
		a.mu.Lock()
		var message []byte
		if len(a.outbox) > 0 {
			message, a.outbox = a.outbox[0], a.outbox[1:]
		}
		a.mu.Unlock()
		if message == nil {
			select {
			case <-a.filled:
			case <-over:
				return
			}
		} else if socket.send(message) != nil {
			a.mu.Lock()
			a.outbox = append([][]byte{message}, a.outbox...)
			a.signal()
			a.mu.Unlock()
			return
		}
	}
}

// reconnect closes a connection to a coordinator that does not know this member.
func (a *Agent) reconnect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.socket != nil {
		a.socket.close()
	}
}

func (a *Agent) interval() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hello.record == nil {
		return heartbeatSeconds
	}
	return a.hello.record.Desired.Heartbeat / 1000
}

func (a *Agent) isGone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// end is the end of its pod: all its connections close.
func (a *Agent) end() {
	a.mu.Lock()
	was, record, wasInside := a.gone, a.hello.record, a.inside
	a.gone, a.inside = true, false
	if a.socket != nil {
		a.socket.close()
	}
	term := a.term
	a.mu.Unlock()
	if !was {
		a.group.ended(a, record, wasInside, term)
	}
}
