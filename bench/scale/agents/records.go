package main

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

const pieceCharacters = 48 * 1024

var errDifference = errors.New("the difference does not fit the record of its parent")

// Place is the place of a member in a generation, field by field as in the record's JSON.
type Place struct {
	Member   string `json:"member"`
	Index    int    `json:"index"`
	Pod      string `json:"pod"`
	Node     string `json:"node"`
	First    int    `json:"first_rank"`
	Ranks    int    `json:"ranks"`
	Address  string `json:"address"`
	Endpoint string `json:"endpoint"`
}

// Source is where a memory snapshot is held: a place for each shard.
type Source struct {
	Number json.RawMessage `json:"number"`
	Places []string        `json:"places"`
}

// Record is a generation, field by field as in its JSON. All agents share one copy of it. The agents
// do not compare its checksum: a test compares its JSON with that of the coordinator.
type Record struct {
	Number       Number          `json:"number"`
	Reason       json.RawMessage `json:"reason"`
	RestoredFrom string          `json:"restored_from"`
	Members      []Place         `json:"members"`
	Store        string          `json:"store"`
	Desired      json.RawMessage `json:"desired"`
	Snapshot     *Source         `json:"snapshot"`
	Failures     int             `json:"failures"`

	heartbeat float64 // milliseconds
	places    map[string]Place
	shards    int // of a memory snapshot: one of each rank
	packed    func() string
}

// Difference is what makes a record of that of its parent.
type Difference struct {
	Reason       json.RawMessage   `json:"reason"`
	RestoredFrom string            `json:"restored_from"`
	Store        string            `json:"store"`
	Failures     int               `json:"failures"`
	Members      []json.RawMessage `json:"members"` // a run of the parent's, or a member that is new
	Desired      json.RawMessage   `json:"desired"`
	Snapshot     *struct {
		Number  json.RawMessage   `json:"number"`
		Holders []json.RawMessage `json:"holders"`
	} `json:"snapshot"`
}

func readRecord(text []byte) (*Record, error) {
	record := &Record{}
	if err := json.Unmarshal(text, record); err != nil {
		return nil, err
	}
	return record, record.prepare()
}

func (r *Record) prepare() error {
	var desired struct {
		Heartbeat float64 `json:"heartbeat_milliseconds"`
	}
	if err := json.Unmarshal(r.Desired, &desired); err != nil {
		return err
	}
	r.heartbeat, r.places = desired.Heartbeat, map[string]Place{}
	for _, place := range r.Members {
		r.places[place.Member] = place
		r.shards += place.Ranks
	}
	r.packed = sync.OnceValue(r.pack)
	return nil
}

// pack returns the record as it is sent in pieces.
func (r *Record) pack() string {
	var text, packed bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	must(encoder.Encode(r))
	into := zlib.NewWriter(&packed)
	into.Write(bytes.TrimSpace(text.Bytes()))
	must(into.Close())
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

// piece is the answer to a coordinator that asks for a piece of the record.
func (r *Record) piece(number int) []byte {
	text := r.packed()
	pieces := (len(text) + pieceCharacters - 1) / pieceCharacters
	from, to := number*pieceCharacters, min(len(text), (number+1)*pieceCharacters)
	return fmt.Appendf(nil, `{"kind":"record_piece","number":%v,"piece":%d,"pieces":%d,"text":"%s"}`,
		r.Number, number, pieces, text[min(from, to):to])
}

func unpack(text string) (*Record, error) {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	from, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	record, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	return readRecord(record)
}

// with returns the record of the generation that differs so from this one.
func (r *Record) with(number Number, difference *Difference) (*Record, error) {
	made := &Record{
		Number: number, Reason: difference.Reason, RestoredFrom: difference.RestoredFrom,
		Store: difference.Store, Desired: difference.Desired, Failures: difference.Failures,
	}
	if string(made.Desired) == "null" {
		made.Desired = r.Desired
	}
	rank := 0
	for _, run := range difference.Members {
		places, err := r.run(run)
		if err != nil {
			return nil, err
		}
		for _, place := range places {
			place.First = rank
			rank += place.Ranks
			made.Members = append(made.Members, place)
		}
	}
	if snapshot := difference.Snapshot; snapshot != nil {
		made.Snapshot = &Source{Number: snapshot.Number}
		for _, holders := range snapshot.Holders {
			if err := made.hold(holders); err != nil {
				return nil, err
			}
		}
	}
	return made, made.prepare()
}

func (r *Record) run(text json.RawMessage) ([]Place, error) {
	if text[0] == '{' {
		places := make([]Place, 1)
		return places, json.Unmarshal(text, &places[0])
	}
	var bounds [2]int
	if err := json.Unmarshal(text, &bounds); err != nil {
		return nil, err
	}
	if bounds[0] < 0 || bounds[0] >= bounds[1] || bounds[1] > len(r.Members) {
		return nil, errDifference
	}
	return r.Members[bounds[0]:bounds[1]], nil
}

// hold adds places of a snapshot: those of members that stand together, or of an agent elsewhere.
func (r *Record) hold(text json.RawMessage) error {
	var run [3]int
	if json.Unmarshal(text, &run) == nil {
		if run[0] < 0 || run[1] < 0 || run[0]+run[1] > len(r.Members) {
			return errDifference
		}
		for _, place := range r.Members[run[0] : run[0]+run[1]] {
			r.add(place.Endpoint, run[2])
		}
		return nil
	}
	var elsewhere [2]json.RawMessage
	if err := json.Unmarshal(text, &elsewhere); err != nil {
		return err
	}
	shards, err := strconv.Atoi(string(elsewhere[1]))
	r.add(strings.Trim(string(elsewhere[0]), `"`), shards)
	return err
}

func (r *Record) add(endpoint string, shards int) {
	for range shards {
		r.Snapshot.Places = append(r.Snapshot.Places, endpoint)
	}
}

// Begin is the beginning of a message that begins a generation.
type Begin struct{ number, parent Number }

// readBegin returns it; false: it is another message.
func readBegin(message []byte) (begin Begin, found bool) {
	var checksum string
	count, _ := fmt.Sscanf(string(message[:min(len(message), beginning)]),
		`{"kind":"begin","number":[%d,%d],"checksum":"%32s","parent":[%d,%d]`,
		&begin.number[0], &begin.number[1], &checksum, &begin.parent[0], &begin.parent[1])
	return begin, count >= 2
}

// Piece is the beginning of a message with a piece of a record.
type Piece struct {
	number        Number
	piece, pieces int
}

// readPiece returns it; false: it is another message.
func readPiece(message []byte) (piece Piece, found bool) {
	count, _ := fmt.Sscanf(string(message[:min(len(message), beginning)]),
		`{"kind":"record_piece","number":[%d,%d],"piece":%d,"pieces":%d`,
		&piece.number[0], &piece.number[1], &piece.piece, &piece.pieces)
	return piece, count == 4
}

// Intake is the record that an agent fetches, over one connection.
type Intake struct {
	number Number
	text   strings.Builder
	held   [][]byte // orders that wait for it
}

func wanted(number Number, piece int) []byte {
	return fmt.Appendf(nil, `{"kind":"record_wanted","number":%v,"piece":%d}`, number, piece)
}
