// SPDX-License-Identifier: Apache-2.0

// Judges a history of a store's clients (tests/store/history.c) by Porcupine, a checker that knows nothing of Hapax: is
// there an order of the calls, each within its own time, in which one record for each key gives these answers? What the
// record does is said here a second time, from docs/design.md, "The machine".
//
//	porcupine hold|rerun LEASE_US SLACK_US LATE_US SECONDS [hinted] <HISTORY
//
// SLACK_US is by how much the clocks that judge leases may be late, or early. A call without an answer, or with
// INDETERMINATE, may have been applied at any time after it began, or never. So may a copy of each call that took longer
// than LATE_US: its client asked again on another connection. A call that is UNAVAILABLE was surely not applied, and is
// left out. So is a read without an answer. `hinted`: IN_FLIGHT may be said of any record, and without its attempt. Exit status 1: there is no such order, or none was found in time.
//
// Only some orders of the calls without an answer are searched; where there is an order, there is one of these. A call
// that changes nothing comes last, with those that were never applied. Calls that ask the same come as they began: each
// may be applied as late as one likes, so where two change places, another order is found. Without these rules ten
// repeats of a claim take hours.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const never = math.MaxInt64 / 2

type line struct {
	Who     string
	N       int
	At      int64
	Op      string
	Key     int
	Token   string
	Body    string
	Error   string
	Verdict string
	State   string
	Attempt int
	Fence   uint64
	Stale   bool
}

type call struct {
	asked    line
	from, to int64
	answers  *int // how many calls of its key have an answer
	alike    int  // without an answer: the number of those of its key that ask the same
	rank     int  // without an answer: how many of these began earlier
}

// What the calls of one key that have no answer may ask at most; one more ends the program.
const kinds = 64

// One record. A fence of 0 is one that nobody was told; it is above the last one that somebody was.
type record struct {
	state            string
	token, body      string
	attempt          int
	fence, above     uint64
	earliest, latest int64 // when the lease is over
	hold, stale      bool
	answered         int          // calls with an answer that were placed
	used             [kinds]uint8 // of each kind of those without, how many
}

type rules struct {
	hold, hinted bool
	lease, slack int64
}

// Each is a record that may follow, with the answer that the call then has; fence 0: any.
type step struct {
	next    record
	verdict string
	outcome bool // the answer has the record's body
}

func later(at, by int64) int64 {
	if at >= never {
		return never
	}
	return at + by
}

func (r rules) grant(was record, c call) record {
	next := was
	next.state, next.token, next.body = "started", c.asked.Token, ""
	next.attempt++
	next.fence, next.above = 0, max(was.fence, was.above)
	next.hold = next.hold || r.hold
	next.earliest, next.latest = c.from+r.lease, later(c.to, r.lease)
	return next
}

func (r rules) claim(was record, c call) []step {
	unknown := was
	unknown.state, unknown.stale = "unknown", true

	if was.state != "absent" && was.token == c.asked.Token {
		switch was.state {
		case "started":
			return []step{{was, "claimed", false}}
		case "completed":
			return []step{{was, "completed", true}}
		}
		return []step{{was, "lost", false}}
	}
	switch was.state {
	case "absent":
		return []step{{r.grant(was, c), "claimed", false}}
	case "started":
		var steps []step
		if c.from <= later(was.latest, r.slack) {
			steps = append(steps, step{was, "in_flight", false})
		}
		if c.to >= was.earliest-r.slack {
			if was.hold || r.hold {
				return append(steps, step{unknown, "unknown", false})
			}
			next := r.grant(was, c)
			next.stale = true
			steps = append(steps, step{next, "claimed", false})
		}
		return steps
	case "failed":
		if was.stale && (was.hold || r.hold) {
			return []step{{unknown, "unknown", false}}
		}
		return []step{{r.grant(was, c), "claimed", false}}
	case "unknown":
		return []step{{was, "unknown", false}}
	}
	return []step{{was, "completed", true}}
}

func (r rules) byToken(was record, c call) []step {
	next := was
	if was.state == "absent" || was.token != c.asked.Token {
		return []step{{was, "lost", false}}
	}
	switch c.asked.Op {
	case "renew":
		if was.state == "completed" || was.state == "failed" {
			return []step{{was, "lost", false}}
		}
		if was.state == "started" {
			next.earliest = max(was.earliest, c.from+r.lease)
			next.latest = max(was.latest, later(c.to, r.lease))
		}
		return []step{{next, "ok", false}}
	case "complete":
		if was.state == "completed" {
			return []step{{was, "ok", true}}
		}
		if was.state == "failed" {
			return []step{{was, "lost", false}}
		}
		next.state, next.stale, next.body = "completed", false, c.asked.Body
		return []step{{next, "ok", true}}
	}
	switch was.state {
	case "completed":
		return []step{{was, "lost", false}}
	case "unknown":
		return []step{{was, "ok", false}}
	case "failed":
		if was.body == c.asked.Body {
			return []step{{was, "ok", false}}
		}
		return []step{{was, "lost", false}}
	}
	next.state, next.body = "failed", c.asked.Body
	return []step{{next, "ok", false}}
}

func (r rules) steps(was record, c call) []step {
	switch c.asked.Op {
	case "claim":
		return r.claim(was, c)
	case "read":
		if was.state == "absent" {
			return []step{{was, "absent", false}}
		}
		return []step{{was, "found", was.state == "completed"}}
	}
	return r.byToken(was, c)
}

// Whether the answer is the step's; and the record, with the fence that the answer told.
func fits(s step, got line) (record, bool) {
	next := s.next
	if got.Verdict != s.verdict || s.outcome && got.Body != next.body {
		return next, false
	}
	switch s.verdict {
	case "claimed":
		if got.Attempt != next.attempt || got.Stale != next.stale {
			return next, false
		}
	case "found":
		if got.State != next.state || got.Attempt != next.attempt {
			return next, false
		}
	case "in_flight":
		return next, got.Attempt == next.attempt
	default:
		return next, true
	}
	told := next.fence
	next.fence = got.Fence
	return next, told == got.Fence || told == 0 && got.Fence > next.above
}

func (r rules) model() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, operation := range history {
				key := operation.Input.(call).asked.Key
				byKey[key] = append(byKey[key], operation)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []interface{} { return []interface{}{record{state: "absent"}} },
		Step: func(state, input, output interface{}) []interface{} {
			was, c := state.(record), input.(call)
			var states []interface{}
			got, told := output.(line)
			if !told {
				if was.answered == *c.answers {
					return []interface{}{was}
				}
				if was.used[c.alike] != uint8(c.rank) {
					return nil
				}
				for _, s := range r.steps(was, c) {
					if s.next != was {
						s.next.used[c.alike]++
						states = append(states, s.next)
					}
				}
				return states
			}
			was.answered++
			if r.hinted && got.Verdict == "in_flight" {
				return []interface{}{was}
			}
			for _, s := range r.steps(was, c) {
				if next, fit := fits(s, got); fit {
					states = append(states, next)
				}
			}
			return states
		},
		Equal: func(a, b interface{}) bool { return a == b },
	}
	return model.ToModel()
}

func read() (asked []line, answers map[string]line) {
	answers = map[string]line{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var one line
		if json.Unmarshal(in.Bytes(), &one) != nil {
			continue // the last line of one that was killed
		}
		if one.Op != "" {
			asked = append(asked, one)
		} else {
			answers[one.Who+" "+strconv.Itoa(one.N)] = one
		}
	}
	return
}

func number(at int) int64 {
	n, err := strconv.ParseInt(os.Args[at], 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}

func main() {
	r := rules{os.Args[1] == "hold", len(os.Args) > 6, number(2), number(3)}
	late, seconds := number(4), number(5)
	asked, answers := read()
	sort.SliceStable(asked, func(i, j int) bool { return asked[i].At < asked[j].At })
	var history []porcupine.Operation
	open := 0
	alike, ranks, answered := map[int]map[string]int{}, map[string]int{}, map[int]*int{}
	leaveOpen := func(c call) {
		if c.asked.Op == "read" {
			return
		}
		key, what := c.asked.Key, fmt.Sprint(c.asked.Key, " ", c.asked.Op, " ", c.asked.Token, " ", c.asked.Body)
		if alike[key] == nil {
			alike[key] = map[string]int{}
		}
		if _, there := alike[key][what]; !there {
			alike[key][what] = len(alike[key])
		}
		c.to, c.alike, c.rank = never, alike[key][what], ranks[what]
		ranks[what]++
		history = append(history, porcupine.Operation{Input: c, Call: c.from, Return: never})
		open++
	}
	for _, one := range asked {
		got, there := answers[one.Who+" "+strconv.Itoa(one.N)]
		if answered[one.Key] == nil {
			answered[one.Key] = new(int)
		}
		c := call{asked: one, from: one.At, answers: answered[one.Key]}
		if there && got.Error == "unavailable" {
			continue
		}
		told := there && got.Error == "none"
		if told {
			c.to = got.At
			*c.answers++
			history = append(history, porcupine.Operation{Input: c, Call: c.from, Output: got, Return: c.to})
		}
		if !told || c.to-c.from > late {
			leaveOpen(c)
		}
	}
	verdict := porcupine.CheckOperationsTimeout(r.model(), history, time.Duration(seconds)*time.Second)
	fmt.Printf("%d calls, %d of them open: %s\n", len(history), open, verdict)
	if verdict != porcupine.Ok {
		os.Exit(1)
	}
}
