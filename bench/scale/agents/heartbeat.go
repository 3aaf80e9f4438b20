package main

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

const retrySeconds = 1.0

// Heartbeats are those of one agent: one request after another on a connection that is kept.
type Heartbeats struct {
	agent *Agent
	conn  net.Conn
	in    *bufio.Reader
}

// run sends heartbeats until the agent is gone. The first one says that torch is being imported. Pods
// start at different moments, so that heartbeats do not come all at once.
func (h *Heartbeats) run() {
	defer h.disconnect()
	time.Sleep(seconds(rand.Float64() * heartbeatSeconds))
	group := h.agent.group
	path := fmt.Sprintf("/v1/importing/%d?member=%s", h.agent.hello.index, h.agent.hello.member)
	for !h.agent.isGone() {
		interval, begun := h.agent.interval(), monotonic()
		err := h.beat(path, interval)
		group.traffic.lag(monotonic() - begun)
		pause := interval
		if err != nil {
			h.disconnect()
			pause = math.Min(interval, retrySeconds)
		}
		due := monotonic() + pause
		time.Sleep(seconds(pause))
		path = fmt.Sprintf("/v1/heartbeat/%s?delay=%.3f", h.agent.hello.member, monotonic()-due)
	}
}

func (h *Heartbeats) beat(path string, interval float64) error {
	group, timeout := h.agent.group, seconds(math.Max(1, interval))
	if h.conn == nil {
		raw, err := net.DialTimeout("tcp", group.Address, timeout)
		if err != nil {
			return err
		}
		h.conn = counted{raw, &group.traffic}
		h.in = bufio.NewReaderSize(h.conn, 512)
	}
	h.conn.SetDeadline(time.Now().Add(timeout))
	_, err := fmt.Fprintf(h.conn, "POST %s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: identity\r\n"+
		"Authorization: Bearer %s\r\nContent-Length: 0\r\n\r\n", path, group.Address, group.Token)
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(h.in, &http.Request{Method: http.MethodPost})
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		h.agent.reconnect()
	}
	return nil
}

func (h *Heartbeats) disconnect() {
	if h.conn != nil {
		h.conn.Close()
		h.conn = nil
	}
}
