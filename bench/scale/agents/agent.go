package main

import (
	"fmt"
	"math"
	"math/rand"
	"strings"
	"sync"
	"time"
)

const (
	firstSeconds     = 0.1 // longest pause after the first attempt to connect
	soonSeconds      = 0.4 // after the next ones
	soonAttempts     = 10  // that are so soon
	laterSeconds     = 1.0
	queueMessages    = 1000
	beginning        = 256  // bytes of a message by which a known record is recognised
	progressSeconds  = 1.0  // least time between two messages with progress of rank 0's agent
	progressASecond  = 128  // so many of such messages come from the others
	longestProgress  = 10.0 // seconds between two of them
	mostHeld         = 1000
	heartbeatSeconds = 0.5 // until the first generation says how often
)

// Agent is one agent with its ranks.
type Agent struct {
	group    *Group
	filled   chan struct{}
	patience Patience // with the coordinator that answers connections

	mu     sync.Mutex
	hello  Hello
	ended  []string
	inside bool // its ranks are in the generation of its record
	outbox [][]byte
	newest Step    // of its ranks in this generation
	unsent bool    // nothing has been sent of that step
	sent   float64 // when something was sent of a step
	socket *Socket // of a coordinator that has welcomed it
	term   int     // of that coordinator
	gone   bool
	held   string // the newest complete snapshot
	taken  string // the newest snapshot
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
	for attempts := 1; !a.isGone(); attempts++ {
		if a.connectOnce() {
			attempts = 1
		}
		time.Sleep(seconds(longestPause(attempts) * (0.5 + rand.Float64()/2)))
	}
}

// longestPause returns for how long to wait at most after so many attempts in a row, as
// longest_pause of agent/coordinator_connection.py does.
func longestPause(attempts int) float64 {
	longest := laterSeconds
	if attempts <= soonAttempts {
		longest = soonSeconds
	}
	return math.Min(longest, firstSeconds*math.Pow(2, float64(min(attempts, 30)-1)))
}

// connectOnce serves a connection to its end, and returns whether the agent was welcomed.
func (a *Agent) connectOnce() (welcomed bool) {
	socket, err := dial(a.group.Address, "/v1/agent", a.group.Token, &a.group.traffic, a.patience.factor())
	if err != nil {
		if isLate(err) {
			a.patience.note(true)
		}
		return false
	}
	defer socket.close()
	if socket.send(a.helloMessage()) != nil {
		return false
	}
	over := make(chan struct{})
	defer close(over)
	line := &Line{agent: a, socket: socket}
	for {
		message, err := socket.next(beginning, a.group.knows)
		if err != nil && (isLate(err) || welcomed) {
			a.patience.note(isLate(err))
		}
		if err != nil || line.receive(message) != nil {
			break
		}
		if line.welcomed && !welcomed {
			welcomed = true
			go a.flush(socket, over)
		}
	}
	a.mu.Lock()
	a.socket = nil
	a.mu.Unlock()
	return welcomed
}

func (a *Agent) helloMessage() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	hello := a.hello
	hello.ended, hello.current = strings.Join(a.ended, ","), a.taken
	if place, has := a.place(); has && a.newest.number > 0 {
		hello.progress = helloProgress(hello.record.Number, place.First, a.newest)
	}
	return hello.text()
}

// place returns its place in its generation. The lock is held.
func (a *Agent) place() (Place, bool) {
	if a.hello.record == nil {
		return Place{}, false
	}
	place, has := a.hello.record.places[a.hello.member]
	return place, has
}

func (a *Agent) record() *Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hello.record
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
	a.ended, a.hello.restored = nil, ""
	a.outbox, a.newest, a.unsent, a.sent = nil, Step{}, false, math.Inf(-1)
	a.put(heldSnapshots(a.taken))
	if a.inside {
		step := a.group.steps()
		a.hello.restored = helloRestored(record, place.First, step)
		a.put(reports(a.ranks(func(rank int) []string { return []string{restored(record, rank, step)} })))
	}
	a.mu.Unlock()
	a.group.begun(former, record, wasInside, place.Ranks > 0)
}

// ranks returns what each of its ranks has to send. The lock is held.
func (a *Agent) ranks(report func(rank int) []string) (texts []string) {
	place, _ := a.place()
	for rank := place.First; rank < place.First+place.Ranks; rank++ {
		texts = append(texts, report(rank)...)
	}
	return texts
}

// leave parks the ranks of a generation that has failed.
func (a *Agent) leave(number Number) {
	a.over(number, End{step: a.group.steps()})
}

// over has all ranks leave a generation, each with a report.
func (a *Agent) over(number Number, end End) {
	a.mu.Lock()
	defer a.mu.Unlock()
	record := a.hello.record
	if !a.inside || record.Number != number {
		return
	}
	a.inside, end.shards = false, record.shards
	a.ended = a.ranks(func(rank int) []string { return []string{end.inHello(number, rank)} })
	a.put(reports(a.ranks(func(rank int) []string {
		if a.unsent {
			return []string{progress(number, rank, a.newest), end.report(number, rank)}
		}
		return []string{end.report(number, rank)}
	})))
	a.unsent = false
	a.group.left(number)
}

// step notes a step of all ranks, of which only the newest is sent.
func (a *Agent) step(record *Record, step Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inside && a.hello.record == record {
		a.newest, a.unsent = step, true
		a.signal()
	}
}

// hold notes a snapshot of this step, and completed that every member holds its part.
func (a *Agent) hold(record *Record, step int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	place, has := record.places[a.hello.member]
	if !has {
		return
	}
	a.taken = snapshot(record, step, place)
	a.put(heldSnapshots(strings.TrimPrefix(a.held+","+a.taken, ",")))
}

func (a *Agent) completed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = a.taken
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

// take returns the next message, or after how many seconds progress is due.
func (a *Agent) take(now float64) (message []byte, pause float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.outbox) > 0 {
		message, a.outbox = a.outbox[0], a.outbox[1:]
		return message, 0
	}
	if !a.unsent {
		return nil, math.Inf(1)
	}
	if due := a.sent + a.progressPause(); now < due {
		return nil, due - now
	}
	a.unsent, a.sent = false, now
	number := a.hello.record.Number
	return reports(a.ranks(func(rank int) []string {
		return []string{progress(number, rank, a.newest)}
	})), 0
}

// progressPause returns the seconds between two messages with progress, as progress_seconds does in
// protocol/rank_messages.py. The lock is held.
func (a *Agent) progressPause() float64 {
	place, _ := a.place()
	if place.First == 0 {
		return progressSeconds
	}
	return turnSeconds(len(a.hello.record.Members), progressASecond, progressSeconds, longestProgress)
}

// turnSeconds returns the seconds between two messages of each of so many peers, as turn_seconds
// does in system/backoff.py.
func turnSeconds(peers int, aSecond, least, longest float64) float64 {
	return math.Min(math.Max(least, float64(peers)/aSecond), longest)
}

// flush sends what is due, until the connection is over.
func (a *Agent) flush(socket *Socket, over chan struct{}) {
	for {
		message, pause := a.take(monotonic())
		if message == nil {
			if !a.await(pause, over) {
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

// await returns after so many seconds, or when there is more to send; false: the connection is over.
func (a *Agent) await(pause float64, over chan struct{}) bool {
	var due <-chan time.Time
	if !math.IsInf(pause, 1) {
		timer := time.NewTimer(seconds(pause))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-a.filled:
	case <-due:
	case <-over:
		return false
	}
	return true
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
	return a.hello.record.heartbeat / 1000
}

// askSeconds returns the least time between two heartbeats that want an answer, as
// agent/heartbeat.py has it.
func (a *Agent) askSeconds() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hello.record == nil {
		return answerSeconds
	}
	return turnSeconds(len(a.hello.record.Members), answersASecond, answerSeconds, longestAnswer)
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
