package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Group is all agents of a job, and what they have in common: the steps of the training.
type Group struct {
	Settings
	traffic Traffic
	dropped atomic.Int64

	mu       sync.Mutex
	agents   []*Agent // those whose pods are there
	records  map[Number]*Record
	newest   *Record
	entered  map[Number]int // agents whose generation it is
	inside   map[Number]int // those of them whose ranks are in it
	lastAt   map[Number]float64
	terms    map[int]int // agents that a term's coordinator welcomed last
	termAt   map[int]float64
	step     int
	decision int // how the newest generation ends after its next step
}

func newGroup(settings Settings) *Group {
	return &Group{
		Settings: settings,
		records:  map[Number]*Record{}, entered: map[Number]int{}, inside: map[Number]int{},
		lastAt: map[Number]float64{}, terms: map[int]int{}, termAt: map[int]float64{},
	}
}

// answer executes a command.
func (g *Group) answer(command Command) Answer {
	switch command.Do {
	case "form":
		go g.train()
		return g.form(command.Seconds)
	case "lose":
		return g.lose(command.Seconds)
	case "resync":
		return g.resync(command.Term, command.Seconds)
	default:
		return g.state()
	}
}

// form connects all agents at the same time, and returns once all are in one generation.
func (g *Group) form(limit float64) Answer {
	g.mu.Lock()
	for index := range g.Agents {
		g.agents = append(g.agents, newAgent(g, index))
	}
	agents := g.agents
	g.mu.Unlock()
	begun := monotonic()
	for _, agent := range agents {
		go agent.run()
	}
	return g.await(begun, limit, func() (float64, int, bool) { return g.together(Number{}) })
}

// lose ends the last agent, has its loss reported as the operator would, and returns once all
// others are in another generation.
func (g *Group) lose(limit float64) Answer {
	g.mu.Lock()
	last, former := g.agents[len(g.agents)-1], g.newest.Number
	g.mu.Unlock()
	last.end()
	begun := monotonic()
	received := g.traffic.received.Load()
	go g.reportLoss(last.hello.member, limit)
	answer := g.await(begun, limit, func() (float64, int, bool) { return g.together(former) })
	answer.Received = g.traffic.received.Load() - received
	return answer
}

// reportLoss tries again until it is answered, as the operator does.
func (g *Group) reportLoss(member string, limit float64) {
	body, _ := json.Marshal(map[string]any{"members": []string{member}, "reason": "its pod was deleted"})
	for until := monotonic() + limit; monotonic() < until; time.Sleep(seconds(retryPauseSeconds)) {
		request, _ := http.NewRequest(http.MethodPost, "http://"+g.Address+"/v1/lost", bytes.NewReader(body))
		request.Header.Set("Authorization", "Bearer "+g.Token)
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			answer.Body.Close()
			return
		}
	}
	g.fail("the loss of %s could not be reported", member)
}

// resync returns once a coordinator of this term has welcomed all agents.
func (g *Group) resync(term int, limit float64) Answer {
	return g.await(monotonic(), limit, func() (float64, int, bool) { return g.termAt[term], g.terms[term], true })
}

// await returns once all agents that are there have arrived, or after `limit` seconds. `arrived`
// returns when the last one did, how many have, and whether it counts. The lock is held meanwhile.
func (g *Group) await(begun, limit float64, arrived func() (float64, int, bool)) Answer {
	for {
		g.mu.Lock()
		at, count, counts := arrived()
		answer := Answer{Begun: begun, Arrived: count, Of: len(g.agents)}
		if g.newest != nil {
			answer.Generation = g.newest.Number
		}
		g.mu.Unlock()
		if counts && answer.Arrived == answer.Of {
			answer.Done = &at
			return answer
		}
		if monotonic() > begun+limit {
			return answer
		}
		time.Sleep(time.Millisecond)
	}
}

// together returns when the last agent entered the newest generation, how many are in it, and whether
// it is another one than `former` with a place for each.
func (g *Group) together(former Number) (float64, int, bool) {
	if g.newest == nil || g.newest.Number == former {
		return 0, 0, false
	}
	number := g.newest.Number
	return g.lastAt[number], g.entered[number], len(g.newest.Members) == len(g.agents)
}

// train makes a step of all ranks at the same time, as collectives have them do it.
func (g *Group) train() {
	for range time.Tick(time.Duration(g.StepMs) * time.Millisecond) {
		g.mu.Lock()
		record, decision := g.newest, g.decision
		if record == nil || g.inside[record.Number] < len(record.Members) {
			g.mu.Unlock()
			continue
		}
		g.step++
		step, agents := g.step, g.agents
		g.mu.Unlock()
		made := Step{step, float64(time.Now().UnixMicro()) / 1e6}
		for _, agent := range agents {
			agent.step(record, made)
			if step%g.SnapshotSteps == 0 {
				agent.hold(record, step)
			}
		}
		if decision != 0 {
			g.finish(record.Number, step, decision, agents)
		}
	}
}

// finish ends a generation by agreement.
func (g *Group) finish(number Number, step, decision int, agents []*Agent) {
	reason := "leave"
	if decision == decisionStop {
		reason = "stop"
	}
	for _, agent := range agents {
		agent.over(number, End{step: step, reason: reason})
	}
}

// decide notes what rank 0 was asked for: all ranks agree on it in their next step.
func (g *Group) decide(number Number, decision int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.newest != nil && g.newest.Number == number && decision >= decisionLeave {
		g.decision = decision
	}
}

func (g *Group) steps() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.step
}

// knows returns whether the text that begins so need not be read to its end.
func (g *Group) knows(beginning []byte) bool {
	if begin, found := readBegin(beginning); found {
		return g.known(begin.number) != nil
	}
	piece, found := readPiece(beginning)
	return found && g.known(piece.number) != nil
}

func (g *Group) known(number Number) *Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.records[number]
}

// differing returns the generation that a message begins, by its difference to the parent; nil: the
// whole record is needed. One agent computes it for all.
func (g *Group) differing(parent *Record, number Number, message []byte) *Record {
	return g.computed(number, func() (*Record, error) {
		var order Order
		if err := json.Unmarshal(message, &order); err != nil || order.Difference == nil {
			return nil, err
		}
		return parent.with(number, order.Difference)
	})
}

// whole returns the generation whose record has arrived in pieces.
func (g *Group) whole(number Number, text string) *Record {
	record := g.computed(number, func() (*Record, error) { return unpack(text) })
	if record == nil {
		must(fmt.Errorf("no record of generation %v", number))
	}
	return record
}

func (g *Group) computed(number Number, compute func() (*Record, error)) *Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.records[number]; known != nil {
		return known
	}
	record, err := compute()
	if err != nil {
		g.fail("cannot read the record of %v: %v", number, err)
		return nil
	}
	if record != nil {
		g.records[number] = record
	}
	return record
}

// begun notes that an agent has entered a generation.
func (g *Group) begun(former, record *Record, wasInside, isInside bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if former != nil {
		g.forget(former.Number, wasInside)
	}
	g.entered[record.Number]++
	if isInside {
		g.inside[record.Number]++
	}
	g.lastAt[record.Number] = monotonic()
	if g.newest == nil || record.Number.above(g.newest.Number) {
		g.newest, g.decision = record, 0
	}
}

// left notes that the ranks of an agent have left a generation.
func (g *Group) left(number Number) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside[number]--
}

// welcomed notes which coordinator an agent has.
func (g *Group) welcomed(former, term int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if former != term {
		g.terms[former]--
		g.terms[term]++
		g.termAt[term] = monotonic()
	}
}

// ended notes that an agent's pod is gone.
func (g *Group) ended(gone *Agent, record *Record, wasInside bool, term int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if record != nil {
		g.forget(record.Number, wasInside)
	}
	g.terms[term]--
	left := make([]*Agent, 0, len(g.agents))
	for _, agent := range g.agents {
		if agent != gone {
			left = append(left, agent)
		}
	}
	g.agents = left
}

func (g *Group) forget(number Number, wasInside bool) {
	g.entered[number]--
	if wasInside {
		g.inside[number]--
	}
}

func (g *Group) fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}

// state returns what has been counted: heartbeats since the last call, all else since the start.
func (g *Group) state() Answer {
	p99, beats := g.traffic.takeLags()
	g.mu.Lock()
	defer g.mu.Unlock()
	answer := Answer{
		Lag: p99, Beats: beats, Received: g.traffic.received.Load(), Dropped: g.dropped.Load(),
		Of: len(g.agents), Step: g.step,
	}
	if g.newest != nil {
		answer.Generation, answer.Arrived = g.newest.Number, g.entered[g.newest.Number]
	}
	return answer
}
