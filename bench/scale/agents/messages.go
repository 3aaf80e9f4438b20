package main

import (
	"encoding/json"
	"fmt"
	"strconv"
)

const (
	protocolVersion = 3
	decisionLeave   = 3
	decisionStop    = 5
)

// Number is the number of a generation: the term, and the count within it.
type Number [2]int

func (n Number) above(other Number) bool {
	return n[0] > other[0] || (n[0] == other[0] && n[1] > other[1])
}

func (n Number) String() string {
	return fmt.Sprintf("[%d,%d]", n[0], n[1])
}

// Place is the place of a member in a generation.
type Place struct {
	Member string `json:"member"`
	First  int    `json:"first_rank"`
	Ranks  int    `json:"ranks"`
}

// Record is a generation. All agents share one copy of it, and of the text that their hellos repeat.
type Record struct {
	Number       Number  `json:"number"`
	RestoredFrom string  `json:"restored_from"`
	Members      []Place `json:"members"`
	Desired      struct {
		Heartbeat float64 `json:"heartbeat_milliseconds"`
	} `json:"desired"`

	text   string
	places map[string]Place
}

func readRecord(text []byte) (*Record, error) {
	record := &Record{text: string(text), places: map[string]Place{}}
	if err := json.Unmarshal(text, record); err != nil {
		return nil, err
	}
	for _, place := range record.Members {
		record.places[place.Member] = place
	}
	return record, nil
}

// Order is a message of the coordinator.
type Order struct {
	Kind       string          `json:"kind"`
	Term       int             `json:"term"`
	Final      bool            `json:"final"`
	Reason     string          `json:"reason"`
	Generation Number          `json:"generation"`
	Decision   int             `json:"decision"`
	Record     json.RawMessage `json:"record"`
	Snapshot   json.RawMessage `json:"number"`
}

const beginText = `{"kind":"begin","record":{"number":[%d,%d],`

// begins returns the number of the generation that a message begins; false: it is another message.
func begins(message []byte) (number Number, found bool) {
	count, _ := fmt.Sscanf(string(message[:min(len(message), 100)]), beginText, &number[0], &number[1])
	return number, count == 2
}

// What follows writes the messages of agents and ranks as the agent's pydantic does, field by field,
// so that they have the same length. A test compares them.

func report(number Number, rank int, kind, rest string) []byte {
	return []byte(fmt.Sprintf(`{"generation":%v,"rank":%d,"kind":"%s",%s}`, number, rank, kind, rest))
}

func restored(record *Record, rank, step int) []byte {
	source := "null"
	if rank == 0 {
		source = strconv.Quote(record.RestoredFrom)
	}
	return report(record.Number, rank, "restored", fmt.Sprintf(`"step":%d,"restored_from":%s,`+
		`"path":null,"skipped":[],"seconds":0.123456789,"parameters":7000000000,"attention":"flash",`+
		`"total_steps":null,"fallback_reason":"","history_end":null`, step, source))
}

// progress is what dominates a steady job. Rank 0 adds loss and rates.
func progress(number Number, rank, step int, now float64) []byte {
	loss, rate := "null", "0.0"
	if rank == 0 {
		loss, rate = "2.123456789", "123456.789"
	}
	made := make([]byte, 0, 512)
	made = append(made, `{"generation":[`...)
	made = append(strconv.AppendInt(made, int64(number[0]), 10), ',')
	made = append(strconv.AppendInt(made, int64(number[1]), 10), `],"rank":`...)
	made = append(strconv.AppendInt(made, int64(rank), 10), `,"kind":"progress","step":`...)
	made = append(strconv.AppendInt(made, int64(step), 10), `,"time":`...)
	made = append(strconv.AppendFloat(made, now, 'f', -1, 64), `,"seconds":{`...)
	for place, phase := range []string{"step", "wait", "data", "checkpoint"} {
		if place > 0 {
			made = append(made, ',')
		}
		made = append(append(append(made, '"'), phase...), `":`...)
		made = strconv.AppendFloat(made, float64(step)+0.123456789, 'f', -1, 64)
	}
	made = append(append(made, `},"epoch":0.123456789,"loss":`...), loss...)
	made = append(made, `,"has_loss":true,"gradient_norm":`...)
	made = append(append(made, loss...), `,"learning_rate":0.0003,"tokens":`...)
	made = strconv.AppendInt(made, int64(step)*65536, 10)
	made = append(made, `,"compute_seconds":0.412345678,"skipped":0,"tokens_per_second":`...)
	made = append(append(made, rate...), `,"total_steps":0,"steps_per_second":0.0,`...)
	return append(made, `"report_seconds":0.0,"volume":null}`...)
}

func retained(step int) string {
	return fmt.Sprintf(`"retained":{"step":%d,"prepared":false,"shard":0,"shards":1}`, step)
}

func parked(number Number, rank, step int) []byte {
	return report(number, rank, "parked", retained(step))
}

func finished(number Number, rank, step int, reason string) []byte {
	return report(number, rank, "finished", fmt.Sprintf(`"step":%d,"reason":"%s",%s`, step, reason, retained(step)))
}

// snapshot is what an agent holds of a memory snapshot: the whole state, since ranks replicate it.
func snapshot(number Number, step int) string {
	return fmt.Sprintf(`{"number":[%d,%v,1],"shards":[0]}`, step, number)
}

func heldSnapshots(held string) []byte {
	return []byte(`{"kind":"held_snapshots","snapshots":[` + held + `]}`)
}

// Hello is what an agent repeats on every connection.
type Hello struct {
	member, pod, node, address         string
	index, ranks                       int
	record                             *Record
	restored, progress, ended, current string
}

func (h Hello) text() []byte {
	record, highest := "null", "null"
	if h.record != nil {
		record, highest = h.record.text, h.record.Number.String()
	}
	return []byte(fmt.Sprintf(`{"kind":"hello","protocol":%d,"member":"%s","index":%d,"pod":"%s",`+
		`"node":"%s","ranks":%d,"store":"%s:29400","record":`, protocolVersion, h.member, h.index, h.pod,
		h.node, h.ranks, h.address) + record + fmt.Sprintf(`,"highest":%s,"restored":%s,"progress":%s,`+
		`"checkpoint":null,"busy":[],"ended":[%s],"endpoint":"%s:8472","snapshots":[%s]}`, highest,
		orNull(h.restored), orNull(h.progress), h.ended, h.address, h.current))
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}
