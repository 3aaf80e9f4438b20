package main

import (
	"net"
	"sort"
	"sync"
	"sync/atomic"
)

// Traffic counts what all peers receive and send, and how long their heartbeats take.
type Traffic struct {
	received, sent atomic.Int64

	mu   sync.Mutex
	lags []float64
}

// counted is a connection whose bytes count.
type counted struct {
	net.Conn
	traffic *Traffic
}

func (c counted) Read(into []byte) (int, error) {
	count, err := c.Conn.Read(into)
	c.traffic.received.Add(int64(count))
	return count, err
}

func (c counted) Write(from []byte) (int, error) {
	count, err := c.Conn.Write(from)
	c.traffic.sent.Add(int64(count))
	return count, err
}

// lag notes the seconds of a heartbeat from before it was sent until its answer was read. One
// without an answer counts with the time after which it was given up.
func (t *Traffic) lag(took float64) {
	t.mu.Lock()
	t.lags = append(t.lags, took)
	t.mu.Unlock()
}

// takeLags returns the 99th percentile of the heartbeats since the last call, and their number.
func (t *Traffic) takeLags() (p99 float64, count int) {
	t.mu.Lock()
	lags := t.lags
	t.lags = nil
	t.mu.Unlock()
	if len(lags) == 0 {
		return 0, 0
	}
	sort.Float64s(lags)
	return lags[min(len(lags)-1, len(lags)*99/100)], len(lags)
}
