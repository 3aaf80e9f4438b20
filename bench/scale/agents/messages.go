package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
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

// Order is a message of the coordinator.
type Order struct {
	Kind       string          `json:"kind"`
	Term       int             `json:"term"`
	Final      bool            `json:"final"`
	Reason     string          `json:"reason"`
	Generation Number          `json:"generation"`
	Decision   int             `json:"decision"`
	Number     json.RawMessage `json:"number"` // of a generation, or of a snapshot
	Piece      int             `json:"piece"`
	Text       string          `json:"text"` // of a piece of a record
	Difference *Difference     `json:"difference"`
}

// What follows writes the messages of agents and ranks as the agent's pydantic does, field by field,
// so that they have the same length. A test compares them.

func report(kind string, number Number, rank int, rest string) string {
	return fmt.Sprintf(`{"kind":"%s","generation":%v,"rank":%d,%s}`, kind, number, rank, rest)
}

// inHello is a report as a hello repeats it: with the fields that have their defaults.
func inHello(kind string, number Number, rank int, rest string) string {
	return fmt.Sprintf(`{"generation":%v,"rank":%d,"kind":"%s",%s}`, number, rank, kind, rest)
}

// reports is what the ranks of an agent report together.
func reports(texts []string) []byte {
	return []byte(`{"kind":"reports","reports":[` + strings.Join(texts, ",") + `]}`)
}

func restored(record *Record, rank, step int) string {
	source := ""
	if rank == 0 {
		source = fmt.Sprintf(`"restored_from":"%s",`, record.RestoredFrom)
	}
	return report("restored", record.Number, rank, fmt.Sprintf(`"step":%d,%s"seconds":0.123456789,`+
		`"join_seconds":0.1,"parameters":7000000000,"attention":"flash"`, step, source))
}

func helloRestored(record *Record, rank, step int) string {
	source := "null"
	if rank == 0 {
		source = strconv.Quote(record.RestoredFrom)
	}
	return inHello("restored", record.Number, rank, fmt.Sprintf(`"step":%d,"restored_from":%s,`+
		`"path":null,"skipped":[],"seconds":0.123456789,"join_seconds":0.1,`+
		`"parameters":7000000000,"attention":"flash","total_steps":null,"fallback_reason":"","history_end":null`, step, source))
}

// Step is one that all ranks have made, and when.
type Step struct {
	number int
	at     float64
}

func (s Step) seconds() string {
	texts := make([]string, 0, 4)
	for _, phase := range []string{"step", "wait", "data", "checkpoint"} {
		texts = append(texts, fmt.Sprintf(`"%s":%v`, phase, float64(s.number)+0.123456789))
	}
	return strings.Join(texts, ",")
}

// progress is what dominates a steady job. Only rank 0 says more than step and pace.
func progress(number Number, rank int, step Step) string {
	at := strconv.FormatFloat(step.at, 'f', -1, 64)
	if rank != 0 {
		return report("progress", number, rank,
			fmt.Sprintf(`"step":%d,"time":%s,"compute_seconds":0.412345678`, step.number, at))
	}
	return report("progress", number, rank, fmt.Sprintf(`"step":%d,"time":%s,"seconds":{%s},`+
		`"epoch":0.123456789,"loss":2.123456789,"gradient_norm":2.123456789,"learning_rate":0.0003,`+
		`"tokens":%d,"compute_seconds":0.412345678,"tokens_per_second":123456.789`,
		step.number, at, step.seconds(), step.number*65536))
}

func helloProgress(number Number, rank int, step Step) string {
	loss, rate, learning := "null", "0.0", "0.0"
	if rank == 0 {
		loss, rate, learning = "2.123456789", "123456.789", "0.0003"
	}
	return inHello("progress", number, rank, fmt.Sprintf(`"step":%d,"time":%s,"seconds":{%s},`+
		`"epoch":0.123456789,"loss":%s,"has_loss":true,"gradient_norm":%s,"learning_rate":%s,`+
		`"tokens":%d,"compute_seconds":0.412345678,"skipped":0,"tokens_per_second":%s,`+
		`"counts_samples":false,"mfu":0.0,"total_steps":0,"steps_per_second":0.0,"collective_seconds":{},"memory_bytes":{},`+
		`"report_seconds":0.0,"volume":null`, step.number, strconv.FormatFloat(step.at, 'f', -1, 64),
		step.seconds(), loss, loss, learning, step.number*65536, rate))
}

// End is how a rank leaves a generation: parked, or finished for a reason.
type End struct {
	step   int
	reason string
	shards int // of the state, of which each rank has one
}

func (e End) report(number Number, rank int) string {
	shard := ""
	if rank != 0 {
		shard = fmt.Sprintf(`,"shard":%d`, rank)
	}
	return e.text(report, number, rank,
		fmt.Sprintf(`"retained":{"step":%d%s,"shards":%d}`, e.step, shard, e.shards))
}

func (e End) inHello(number Number, rank int) string {
	return e.text(inHello, number, rank,
		fmt.Sprintf(`"retained":{"step":%d,"prepared":false,"shard":%d,"shards":%d}`, e.step, rank, e.shards))
}

func (e End) text(write func(string, Number, int, string) string, number Number, rank int, retained string) string {
	if e.reason == "" {
		return write("parked", number, rank, retained)
	}
	return write("finished", number, rank,
		fmt.Sprintf(`"step":%d,"reason":"%s",%s`, e.step, e.reason, retained))
}

// snapshot is what an agent holds of a memory snapshot: the shards of the agent before it, and those
// of its own ranks.
func snapshot(record *Record, step int, place Place) string {
	count := min(2*place.Ranks, record.shards)
	shards := make([]string, 0, count)
	for n := place.First + place.Ranks - count; n < place.First+place.Ranks; n++ {
		shards = append(shards, strconv.Itoa((n+record.shards)%record.shards))
	}
	return fmt.Sprintf(`{"number":[%d,%v,%d],"shards":[%s]}`,
		step, record.Number, record.shards, strings.Join(shards, ","))
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
	generation := "null"
	if h.record != nil {
		generation = h.record.Number.String()
	}
	return []byte(fmt.Sprintf(`{"protocol":%d,"member":"%s","index":%d,"pod":"%s","node":"%s",`+
		`"ranks":%d,"store":"%s:29400","highest":%s,"restored":%s,"progress":%s,"checkpoint":null,`+
		`"busy":[],"ended":[%s],"endpoint":"%s:8472","snapshots":[%s],"kind":"hello","generation":%s}`,
		protocolVersion, h.member, h.index, h.pod, h.node, h.ranks, h.address, generation,
		orNull(h.restored), orNull(h.progress), h.ended, h.address, h.current, generation))
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}
