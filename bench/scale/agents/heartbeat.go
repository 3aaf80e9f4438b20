package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	retrySeconds   = 1.0
	stallSeconds   = 4.0 // for which a connection without an answer is kept
	againSeconds   = 0.1
	answerSeconds  = 1.0 // least time between two frames that want an answer
	longestAnswer  = 2.0 // the same in a large generation
	answersASecond = 512 // so many answers all agents want

	frameBytes = 16
	importing  = 1
	alive      = 2
	unknown    = 4
)

var (
	errNoUpgrade = errors.New("the coordinator takes no frames")
	errNoAnswer  = errors.New("no answer to a heartbeat")
)

// Heartbeats are those of one agent: frames on a connection that is kept.
type Heartbeats struct {
	agent     *Agent
	conn      net.Conn
	in        *bufio.Reader
	connected float64
	patience  Patience
	asked     float64 // when a frame wanted an answer for the last time
	awaits    bool    // that answer has not come
}

// run sends heartbeats until the agent is gone. The first one says that torch is being imported. Pods
// start at different moments, so that heartbeats do not come all at once.
func (h *Heartbeats) run() {
	defer h.disconnect()
	time.Sleep(seconds(rand.Float64() * heartbeatSeconds))
	kind, delay := byte(importing), 0.0
	for !h.agent.isGone() {
		interval := h.agent.interval()
		pause := interval
		if h.beat(kind, delay, interval) != nil {
			h.disconnect()
			pause = math.Min(interval, retrySeconds)
		}
		due := h.await(monotonic() + pause)
		kind, delay = alive, monotonic()-due
	}
}

func (h *Heartbeats) beat(kind byte, delay, interval float64) error {
	patience, now := math.Max(1, interval), monotonic()
	if h.awaits && now-h.asked >= math.Max(stallSeconds, patience*h.patience.factor()) {
		h.patience.note(true)
		h.agent.reconnect()
		return errNoAnswer
	}
	if h.conn == nil {
		if err := h.connect(patience); err != nil {
			return err
		}
	}
	wants := !h.awaits && now-h.asked >= h.agent.askSeconds()
	var frame [frameBytes]byte
	frame[0] = kind
	if wants {
		frame[1], h.asked, h.awaits = 1, now, true
	}
	binary.BigEndian.PutUint32(frame[4:], uint32(max(0, delay)*1000))
	binary.BigEndian.PutUint64(frame[8:], uint64(now*1e9))
	h.conn.SetWriteDeadline(time.Now().Add(seconds(patience)))
	_, err := h.conn.Write(frame[:])
	return err
}

func (h *Heartbeats) connect(patience float64) error {
	group := h.agent.group
	raw, err := net.DialTimeout("tcp", group.Address, seconds(patience))
	if err != nil {
		return err
	}
	h.conn = counted{raw, &group.traffic}
	h.in = bufio.NewReaderSize(h.conn, 512)
	h.conn.SetDeadline(time.Now().Add(seconds(patience * h.patience.factor())))
	_, err = fmt.Fprintf(h.conn, "GET /v1/heartbeats/%d?member=%s HTTP/1.1\r\nHost: %s\r\n"+
		"Accept-Encoding: identity\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\n"+
		"Upgrade: regroup-heartbeats\r\n\r\n", h.agent.hello.index, h.agent.hello.member,
		group.Address, group.Token)
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(h.in, nil)
	if err == nil && answer.StatusCode != http.StatusSwitchingProtocols {
		err = errNoUpgrade
	}
	h.connected = monotonic()
	if err == nil || isLate(err) {
		h.patience.note(err != nil)
	}
	return err
}

// await reads answers until the next heartbeat is due. It returns when that is: sooner, where the
// connection ends.
func (h *Heartbeats) await(due float64) float64 {
	for h.conn != nil {
		left := due - monotonic()
		if left <= 0 {
			return due
		}
		h.conn.SetReadDeadline(time.Now().Add(seconds(left)))
		answer, err := h.in.Peek(frameBytes)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return due
		}
		if err != nil {
			pause := retrySeconds
			if monotonic()-h.connected > retrySeconds {
				pause = againSeconds
			}
			h.disconnect()
			due = math.Min(due, monotonic()+pause)
			break
		}
		h.handle(answer)
		h.in.Discard(frameBytes)
	}
	time.Sleep(seconds(due - monotonic()))
	return due
}

func (h *Heartbeats) handle(answer []byte) {
	if sent := float64(binary.BigEndian.Uint64(answer[8:])) / 1e9; h.awaits {
		h.agent.group.traffic.lag(monotonic() - sent)
		h.awaits = false
		h.patience.note(false)
	}
	if answer[0] == unknown {
		h.agent.reconnect()
	}
}

// disconnect counts an answer that does not come any more as one that has come now.
func (h *Heartbeats) disconnect() {
	if h.awaits {
		h.agent.group.traffic.lag(monotonic() - h.asked)
	}
	if h.conn != nil {
		h.conn.Close()
		h.conn = nil
	}
	h.awaits = false
}
