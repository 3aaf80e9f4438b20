// The program agents plays the agents of one job for bench/scale, or the managers of torchft.
//
// The first line of its standard input is Settings, and each other one a Command, which it answers
// with a line: an Answer. All times are seconds of the machine's monotonic clock. It ends with its
// input.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Settings says what to play.
type Settings struct {
	Kind          string `json:"kind"`    // regroup or torchft
	Address       string `json:"address"` // host:port of the coordinator
	Token         string `json:"token"`
	Job           string `json:"job"`
	Agents        int    `json:"agents"`
	Ranks         int    `json:"ranks"` // of each
	StepMs        int    `json:"step_ms"`
	SnapshotSteps int    `json:"snapshot_steps"`
	TimeoutMs     int    `json:"timeout_ms"` // after which a lighthouse counts a manager as lost
}

// Command is one line of the input.
type Command struct {
	Do      string  `json:"do"`
	Seconds float64 `json:"seconds"` // after which an answer comes in any case
	Term    int     `json:"term"`
}

// Answer is one line of the output.
type Answer struct {
	Begun      float64  `json:"begun"`
	Done       *float64 `json:"done"` // when the last one arrived; null: not all did
	Arrived    int      `json:"arrived"`
	Of         int      `json:"of"`
	Received   int64    `json:"received"` // bytes
	Lag        float64  `json:"lag"`      // of heartbeats: 99th percentile, seconds
	Beats      int      `json:"beats"`
	Dropped    int64    `json:"dropped"` // messages that did not fit into the agents' queues
	Step       int      `json:"step"`
	Generation Number   `json:"generation"`
}

// Played is what can be played.
type Played interface {
	answer(Command) Answer
}

func play(settings Settings) Played {
	if settings.Kind == "torchft" {
		return &Managers{settings: settings}
	}
	return newGroup(settings)
}

func main() {
	var settings Settings
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Scan()
	must(json.Unmarshal(lines.Bytes(), &settings))
	played := play(settings)
	for lines.Scan() {
		var command Command
		must(json.Unmarshal(lines.Bytes(), &command))
		must(answers.Encode(played.answer(command)))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
