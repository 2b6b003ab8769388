// The driver of sdk/go for the cases in sdk/cases (its README says what is spoken).
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"hapax.example/hapax"
)

type command struct {
	Do, ID, Scope, Key, As, Name, Text string
	Traceparent                        string
	Args, Value, Owner, Caller         json.RawMessage
	Policy                             map[string]string
	Bytes                              json.RawMessage // true, or what bytes
	Reconcile, Background              bool
}

type event map[string]any

// The errors of handlers.
type (
	raised string
	notRun string
)

func (e raised) Error() string { return string(e) }
func (e notRun) Error() string { return string(e) }

var (
	mu      sync.Mutex
	boxes   = map[string]chan command{}
	cancels = map[string]context.CancelFunc{}
	dial    sync.Once
	door    *hapax.Door
)

func say(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		log.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	fmt.Println(string(line))
}

func box(id string) chan command {
	mu.Lock()
	defer mu.Unlock()
	if boxes[id] == nil {
		boxes[id] = make(chan command, 100)
	}
	return boxes[id]
}

// connected returns the one door, which is dialled at the first call.
func connected() *hapax.Door {
	dial.Do(func() {
		var err error
		if door, err = hapax.Dial(context.Background(), "", hapax.ConnectTimeout(time.Minute)); err != nil {
			log.Fatal(err)
		}
	})
	return door
}

func bytesOf(given json.RawMessage) []byte {
	var what struct {
		Base64 []byte
		Size   int
	}
	if err := json.Unmarshal(given, &what); err != nil {
		log.Fatal(err)
	}
	for i := 0; i < what.Size; i++ {
		what.Base64 = append(what.Base64, byte(i%251))
	}
	return what.Base64
}

// result is what a command to return says, as a T.
func result[T ~[]byte](c command) T {
	if c.Bytes != nil {
		return T(bytesOf(c.Bytes))
	}
	return T(c.Value)
}

// handler returns a handler that is steered by the commands for id.
func handler[T ~[]byte](id string) func(context.Context, *hapax.Op) (T, error) {
	return func(ctx context.Context, op *hapax.Op) (T, error) {
		say(event{"run": id, "attempt": op.Attempt(), "fence": op.Fence(), "stale": op.Stale(), "key": op.Key(),
			"traceparent": op.Traceparent()})
		lost := ctx.Done()
		for {
			select {
			case <-lost:
				say(event{"lost": id})
				lost = nil
			case c := <-box(id):
				switch c.Do {
				case "return":
					return result[T](c), nil
				case "raise":
					return nil, raised(c.Text)
				case "not_run":
					return nil, hapax.NotRun(notRun(c.Text))
				case "nest":
					return hapax.Do(ctx, connected(), hapax.Key(c.Scope, c.Key), handler[T](c.As))
				case "step":
					if c.Background {
						go step(context.WithoutCancel(ctx), op, c)
					} else {
						step(ctx, op, c)
					}
				}
			}
		}
	}
}

func step(ctx context.Context, op *hapax.Op, c command) {
	if c.Bytes != nil {
		give(c.As)(hapax.Step(ctx, op, c.Name, handler[[]byte](c.As)))
	} else {
		giveValue(c.As)(hapax.Step(ctx, op, c.Name, handler[json.RawMessage](c.As)))
	}
}

func hook[T ~[]byte](id string) func(context.Context, *hapax.Op) (T, bool, error) {
	return func(_ context.Context, op *hapax.Op) (T, bool, error) {
		say(event{"reconcile": id, "attempt": op.Attempt()})
		c := <-box(id)
		if c.Do == "break" {
			panic(raised("broken"))
		}
		if c.Do == "cannot_tell" {
			return nil, false, raised("cannot tell")
		}
		return result[T](c), c.Do == "happened", nil
	}
}

func give(id string) func([]byte, error) {
	return func(value []byte, err error) {
		end(id, "bytes", event{"size": len(value), "sha256": fmt.Sprintf("%x", sha256.Sum256(value))}, err)
	}
}

func giveValue(id string) func(json.RawMessage, error) {
	return func(value json.RawMessage, err error) { end(id, "value", value, err) }
}

// end says what a call or a step gave its caller.
func end(id, kind string, value any, err error) {
	var answer *hapax.Error
	var mine raised
	var not notRun
	switch {
	case err == nil:
		say(event{"end": id, kind: value})
		return
	case errors.As(err, &not):
		say(event{"end": id, "error": "not_run", "text": string(not)})
		return
	case errors.As(err, &mine):
		say(event{"end": id, "error": "raised", "text": string(mine)})
		return
	case errors.As(err, &answer):
		e := event{"end": id, "error": answer.Answer, "text": answer.Error(), "differs": answer.Differs}
		if answer.RetryAfter >= 0 {
			e["retry_after_ms"] = answer.RetryAfter.Milliseconds()
		}
		say(e)
		return
	case errors.Is(err, context.Canceled):
		say(event{"end": id, "error": "cancelled", "text": err.Error()})
		return
	}
	say(event{"end": id, "error": "invalid", "text": err.Error()})
}

func call(ctx context.Context, c command) {
	defer func() {
		if broken := recover(); broken != nil {
			end(c.ID, "", nil, broken.(error))
		}
	}()
	options := []hapax.Option{hapax.Fingerprint(c.Args), hapax.Traceparent(c.Traceparent)}
	var owner string
	var caller []string
	_, _ = json.Unmarshal(c.Owner, &owner), json.Unmarshal(c.Caller, &caller) // null is empty
	if c.Owner != nil {
		options = append(options, hapax.Owner(owner))
	}
	if c.Caller != nil {
		options = append(options, hapax.Caller(caller...))
	}
	for name, value := range c.Policy {
		options = append(options, hapax.Policy(name, value))
	}
	key := hapax.Key(c.Scope, c.Key)
	if c.Bytes != nil {
		if c.Reconcile {
			options = append(options, hapax.Reconcile(hook[[]byte](c.ID)))
		}
		give(c.ID)(hapax.Do(ctx, connected(), key, handler[[]byte](c.ID), options...))
		return
	}
	if c.Reconcile {
		options = append(options, hapax.Reconcile(hook[json.RawMessage](c.ID)))
	}
	giveValue(c.ID)(hapax.Do(ctx, connected(), key, handler[json.RawMessage](c.ID), options...))
}

func main() {
	say(event{"ready": "go/0.1.0", "can": []string{"cancel", "break"}})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			log.Fatal(err)
		}
		switch c.Do {
		case "call":
			ctx, cancel := context.WithCancel(context.Background())
			cancels[c.ID] = cancel
			go call(ctx, c)
		case "cancel":
			cancels[c.ID]()
		default:
			box(c.ID) <- c
		}
	}
	if door != nil {
		door.Close()
	}
}
