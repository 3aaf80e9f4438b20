package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	managerBeatSeconds = 0.1 // as by default
	quorumSeconds      = 60.0
	retryPauseSeconds  = 0.1
	service            = "/torchft.LighthouseService/"
)

var errQuorum = errors.New("not a quorum")

// Managers are those of torchft's replica groups: each sends heartbeats to one lighthouse, and asks
// it for a quorum before each step.
type Managers struct {
	settings Settings
	traffic  Traffic

	mu       sync.Mutex
	managers []*Manager
	quorum   int // the newest
	steps    int // of the first manager
}

// Manager is one of them.
type Manager struct {
	group  *Managers
	name   string
	client *http.Client
	alive  context.Context
	end    context.CancelFunc

	asked, got float64 // when it asked for the quorum that it has, and when it got it
	size       int     // how many take part in it
	shown      float64 // when it last showed life
}

// answer executes a command.
func (g *Managers) answer(command Command) Answer {
	switch command.Do {
	case "form":
		return g.form(command.Seconds)
	case "lose":
		return g.lose(command.Seconds)
	case "resync":
		return g.await(monotonic(), command.Seconds)
	default:
		return g.state()
	}
}

func (g *Managers) form(limit float64) Answer {
	g.mu.Lock()
	for index := range g.settings.Agents {
		g.managers = append(g.managers, newManager(g, index))
	}
	managers := g.managers
	g.mu.Unlock()
	begun := monotonic()
	for _, manager := range managers {
		go manager.beat()
		go manager.train()
	}
	return g.await(begun, limit)
}

// lose ends the last manager. Nobody can report that to a lighthouse: it knows it when it has seen no
// sign of life for long enough, which is when the time begins.
func (g *Managers) lose(limit float64) Answer {
	g.mu.Lock()
	last := g.managers[len(g.managers)-1]
	g.managers = g.managers[:len(g.managers)-1]
	g.mu.Unlock()
	last.end()
	last.client.CloseIdleConnections()
	received := g.traffic.received.Load()
	answer := g.await(monotonic(), limit)
	g.mu.Lock()
	answer.Begun = last.shown + float64(g.settings.TimeoutMs)/1000
	g.mu.Unlock()
	answer.Received = g.traffic.received.Load() - received
	return answer
}

// await returns once all managers have a quorum of all of them, for which they have asked since.
func (g *Managers) await(since, limit float64) Answer {
	for {
		answer := Answer{Begun: since}
		at := 0.0
		g.mu.Lock()
		for _, manager := range g.managers {
			if manager.asked > since && manager.size == len(g.managers) {
				answer.Arrived++
				at = max(at, manager.got)
			}
		}
		answer.Of = len(g.managers)
		g.mu.Unlock()
		if answer.Arrived == answer.Of {
			answer.Done = &at
			return answer
		}
		if monotonic() > since+limit {
			return answer
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (g *Managers) state() Answer {
	p99, beats := g.traffic.takeLags()
	g.mu.Lock()
	defer g.mu.Unlock()
	return Answer{
		Lag: p99, Beats: beats, Received: g.traffic.received.Load(), Of: len(g.managers),
		Step: g.steps, Generation: Number{1, g.quorum},
	}
}

// newManager returns one with a connection of its own.
func newManager(group *Managers, index int) *Manager {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return counted{raw, &group.traffic}, nil
		},
	}
	alive, end := context.WithCancel(context.Background())
	name := fmt.Sprintf("replica-%d:5d1f6c3e-0000-4000-8000-%012d", index, index)
	return &Manager{group: group, name: name, client: &http.Client{Transport: transport}, alive: alive, end: end}
}

// beat sends heartbeats.
func (m *Manager) beat() {
	for m.alive.Err() == nil {
		begun := monotonic()
		m.call("Heartbeat", field(1, m.name), func(io.Reader) error { return nil })
		if m.alive.Err() == nil {
			m.group.traffic.lag(monotonic() - begun)
		}
		time.Sleep(seconds(managerBeatSeconds))
	}
}

// train asks for a quorum, makes a step, and so on.
func (m *Manager) train() {
	for step := 0; m.alive.Err() == nil; step++ {
		asked := monotonic()
		err := m.call("Quorum", m.request(step), func(message io.Reader) error {
			quorum, size, err := readQuorum(message)
			if err == nil {
				m.group.note(m, quorum, size, asked)
			}
			return err
		})
		if err != nil {
			time.Sleep(seconds(retryPauseSeconds))
			continue
		}
		time.Sleep(time.Duration(m.group.settings.StepMs) * time.Millisecond)
	}
}

func (g *Managers) note(manager *Manager, quorum, size int, asked float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.quorum = max(g.quorum, quorum)
	if manager == g.managers[0] {
		g.steps++
	}
	manager.asked, manager.got, manager.size = asked, monotonic(), size
}

// request is a LighthouseQuorumRequest with a QuorumMember.
func (m *Manager) request(step int) []byte {
	member := append(field(1, m.name), field(2, "http://gpu-node-00001.compute.internal:34567")...)
	member = append(member, field(3, "gpu-node-00001.compute.internal:29400")...)
	member = binary.AppendUvarint(append(member, 4<<3), uint64(step))
	member = binary.AppendUvarint(append(member, 5<<3), uint64(m.group.settings.Ranks))
	return field(1, string(member))
}

// call is one gRPC call. `read` gets the message of the answer.
func (m *Manager) call(method string, message []byte, read func(io.Reader) error) error {
	m.group.mu.Lock()
	m.shown = monotonic()
	m.group.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.alive, seconds(quorumSeconds))
	defer cancel()
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	url := "http://" + m.group.settings.Address + service + method
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(append(body, message...)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	answer, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if status := answer.Header.Get("Grpc-Status"); status != "" && status != "0" {
		return fmt.Errorf("gRPC status %s", status)
	}
	if _, err := io.CopyN(io.Discard, answer.Body, 5); err != nil {
		return err
	}
	if err := read(answer.Body); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// field is a text or message in the encoding of protobuf.
func field(number int, value string) []byte {
	made := binary.AppendUvarint([]byte{byte(number<<3 | 2)}, uint64(len(value)))
	return append(made, value...)
}

// readQuorum returns the number of the quorum in a LighthouseQuorumResponse, and how many take part.
func readQuorum(message io.Reader) (number, size int, err error) {
	in := bufio.NewReader(message)
	if tag, err := in.ReadByte(); err != nil || tag != 1<<3|2 {
		return 0, 0, errQuorum
	}
	if _, err := binary.ReadUvarint(in); err != nil {
		return 0, 0, err
	}
	for {
		tag, err := in.ReadByte()
		if err == io.EOF {
			return number, size, nil
		}
		value, valueErr := binary.ReadUvarint(in)
		if err = errors.Join(err, valueErr); err != nil {
			return 0, 0, err
		}
		switch tag {
		case 1 << 3:
			number = int(value)
			continue
		case 2<<3 | 2:
			size++
		}
		if _, err := in.Discard(int(value)); err != nil {
			return 0, 0, err
		}
	}
}
