package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	connectSeconds = 2.0
	pingSeconds    = 8.0

	text    = 1
	closing = 8
	ping    = 9
	pong    = 10
)

var errNoMessage = errors.New("not a whole message in one frame")

// A Socket is the client's end of a WebSocket. It writes each message as one frame, as the agent's
// aiohttp does, and lets a reader skip what it knows: libraries do neither.
type Socket struct {
	conn    net.Conn
	in      *bufio.Reader
	live    bool // after the handshake, which has a deadline of its own
	writing sync.Mutex
}

// dial connects and upgrades. As the agent does, it gives up after two seconds, or has more patience.
func dial(address, path, token string, traffic *Traffic, patience float64) (*Socket, error) {
	until := time.Now().Add(seconds(connectSeconds * (1 + patience)))
	raw, err := net.DialTimeout("tcp", address, seconds(connectSeconds))
	if err != nil {
		return nil, fmt.Errorf("nobody is there: %v", err)
	}
	raw.SetDeadline(until)
	socket := &Socket{conn: counted{raw, traffic}}
	socket.in = bufio.NewReader(watched{socket})
	if err := socket.upgrade(address, path, token); err != nil {
		raw.Close()
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	socket.live = true
	return socket, nil
}

func (s *Socket) upgrade(address, path, token string) error {
	_, err := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAccept: */*\r\n\r\n", path, address, token)
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(s.in, nil)
	if err == nil && answer.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("HTTP %d", answer.StatusCode)
	}
	return err
}

// watched reads from a socket. It sends a ping after eight seconds without a byte, and gives up after
// another four.
type watched struct{ socket *Socket }

func (w watched) Read(into []byte) (int, error) {
	conn := w.socket.conn
	if !w.socket.live {
		return conn.Read(into)
	}
	for patience, pinged := pingSeconds, false; ; patience, pinged = pingSeconds/2, true {
		conn.SetReadDeadline(time.Now().Add(seconds(patience)))
		count, err := conn.Read(into)
		if !errors.Is(err, os.ErrDeadlineExceeded) || pinged {
			return count, err
		}
		w.socket.ping()
	}
}

// ping sends a ping, unless a message waits for its way already.
func (s *Socket) ping() {
	if s.writing.TryLock() {
		defer s.writing.Unlock()
		s.conn.Write(frame(ping, nil))
	}
}

// send writes a message.
func (s *Socket) send(message []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.conn.Write(frame(text, message))
	return err
}

// next returns the next text. Of one that is longer than `enough`, it returns that beginning only
// where `known` says so.
func (s *Socket) next(enough int, known func(beginning []byte) bool) ([]byte, error) {
	for {
		kind, length, err := s.header()
		if err != nil {
			return nil, err
		}
		beginning := make([]byte, min(length, enough))
		if _, err := io.ReadFull(s.in, beginning); err != nil {
			return nil, err
		}
		rest := length - len(beginning)
		switch {
		case kind == closing:
			return nil, io.EOF
		case kind == text && rest > 0 && !known(beginning):
			whole := make([]byte, length)
			copy(whole, beginning)
			_, err := io.ReadFull(s.in, whole[len(beginning):])
			return whole, err
		}
		if _, err := s.in.Discard(rest); err != nil {
			return nil, err
		}
		if kind == text {
			return beginning, nil
		}
		if kind == ping {
			s.writing.Lock()
			s.conn.Write(frame(pong, beginning))
			s.writing.Unlock()
		}
	}
}

// header reads the beginning of a frame: its kind, and the length of what follows.
func (s *Socket) header() (kind byte, length int, err error) {
	var two [2]byte
	if _, err := io.ReadFull(s.in, two[:]); err != nil {
		return 0, 0, err
	}
	kind, length = two[0]&0x0f, int(two[1])
	if two[0]&0xf0 != 0x80 || length > 127 {
		return 0, 0, errNoMessage
	}
	if more := map[int]int{126: 2, 127: 8}[length]; more > 0 {
		var eight [8]byte
		if _, err := io.ReadFull(s.in, eight[8-more:]); err != nil {
			return 0, 0, err
		}
		length = int(binary.BigEndian.Uint64(eight[:]))
	}
	return kind, length, nil
}

func (s *Socket) close() {
	s.conn.Close()
}

// frame returns a whole frame, masked as those of clients are.
func frame(kind byte, message []byte) []byte {
	size := len(message)
	made := make([]byte, 0, size+14)
	switch {
	case size < 126:
		made = append(made, 0x80|kind, 0x80|byte(size))
	case size < 1<<16:
		made = binary.BigEndian.AppendUint16(append(made, 0x80|kind, 0x80|126), uint16(size))
	default:
		made = binary.BigEndian.AppendUint64(append(made, 0x80|kind, 0x80|127), uint64(size))
	}
	mask := binary.NativeEndian.AppendUint32(nil, rand.Uint32())
	made = append(append(made, mask...), message...)
	masked := made[len(made)-size:]
	for place := range masked {
		masked[place] ^= mask[place&3]
	}
	return made
}
