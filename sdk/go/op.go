// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync/atomic"
)

// Request is what a program asks the door for: the members of BEGIN. Most programs use [Do]; the
// adapters of frameworks use this.
type Request struct {
	Scope       string            `json:"scope,omitempty"`
	Key         Text              `json:"key,omitempty"`
	KeyHeader   []string          `json:"key_header,omitempty"` // all values of Idempotency-Key, as they came
	Owner       *Text             `json:"owner,omitempty"`      // nil: none; an empty one is refused
	Caller      []Text            `json:"caller,omitempty"`
	Fingerprint []Text            `json:"fingerprint,omitempty"` // what makes the request this request, but for Body
	BodyPart    string            `json:"body,omitempty"`        // what of Body counts for it: "json", "body", "-/at", "off"
	What        string            `json:"what,omitempty"`        // for operators; no key, no secret
	Traceparent string            `json:"traceparent,omitempty"` // of the caller (W3C Trace Context)
	Policy      map[string]string `json:"policy,omitempty"`
	Reconciles  bool              `json:"reconciles,omitempty"` // a hook answers where Op.Reconcile is true
	Step        string            `json:"step,omitempty"`
	In          uint32            `json:"in,omitempty"`
	As          string            `json:"as,omitempty"` // "call" (default), "http"
	HTTP        *HTTPRequest      `json:"request,omitempty"`
	Nonce       string            `json:"nonce,omitempty"`  // set by Begin
	Ticket      string            `json:"ticket,omitempty"` // of RESUME
	Body        []byte            `json:"-"`

	err  error // of an option
	hook func(context.Context, *Op) (any, bool, error)
	tell *Answer
}

// HTTPRequest is the request of an answer with As "http".
type HTTPRequest struct {
	Method  Text      `json:"method,omitempty"`
	Host    Text      `json:"host,omitempty"`
	URI     Text      `json:"uri,omitempty"`
	Headers [][2]Text `json:"headers,omitempty"`
}

// Answer is the door's last word about an operation (docs/door.md).
type Answer struct {
	Answer       string    `json:"answer"`         // "fresh", "replay", "in_flight", …
	Own          bool      `json:"own"`            // the outcome is what this attempt gave
	Class        string    `json:"class"`          // how this attempt ended; "" where it did not run
	Recorded     bool      `json:"recorded"`       // fresh and false: it is not stored, or not yet
	Unprotected  bool      `json:"unprotected"`    // it ran without the store
	Status       int       `json:"status"`         // of the outcome, where Own is false
	Headers      [][2]Text `json:"headers"`        // as Status
	RetryAfterMS *int64    `json:"retry_after_ms"` // ask again after this; nil: time does not help
	Differs      string    `json:"differs"`        // mismatch: "fingerprint" or "caller"
	Attempt      uint32    `json:"attempt"`
	Fence        uint64    `json:"fence"`
	Error        string    `json:"error"` // why, where the store failed
	Text         string    `json:"text"`
	Body         []byte    `json:"-"`
}

// told is what RUN and RECONCILE say.
type told struct {
	ID, Ticket, Token, Traceparent string
	Key                            Text
	Attempt                        uint32
	Fence                          uint64
	Stale                          bool
	kind                           uint8
}

// Op is an attempt: the right to run the handler of an operation, or of a step, once.
type Op struct {
	call    *call
	run     told
	ended   bool
	stepped atomic.Bool // a step was begun: this attempt may have had an effect
}

// Key returns the key to hand to the next service as its idempotency key: the operation's own, and
// in a step KEY:step. "" where there is none.
func (o *Op) Key() string { return string(o.run.Key) }

// Fence returns a number that rises with each attempt. Hand it to what you write to, which should
// refuse a smaller one. 0 where the operation runs unprotected.
func (o *Op) Fence() uint64 { return o.run.Fence }

// Attempt returns the number of this attempt, from 1 on.
func (o *Op) Attempt() uint32 { return o.run.Attempt }

// Stale reports whether an earlier attempt died, and may have had its effect.
func (o *Op) Stale() bool { return o.run.Stale }

// ID returns the operation's id in hex, by which operators find it. "" without a key.
func (o *Op) ID() string { return o.run.ID }

// Token returns the right to complete the record in a PostgreSQL transaction (package hapaxpg),
// under the policy pass_token. A secret, not for logs.
func (o *Op) Token() string { return o.run.Token }

// Traceparent returns where this run stands among traces (W3C Trace Context), for what the handler
// calls. "" where it stands nowhere.
func (o *Op) Traceparent() string { return o.run.Traceparent }

// Reconcile reports whether the hook is to be asked instead of the handler: did the effect of an
// earlier attempt happen? End with class "final": it did, and this is its outcome. "not_run": it did
// not. "unknown": nobody can tell.
func (o *Op) Reconcile() bool { return o.run.kind == kindReconcile }

// Context returns a context that is cancelled when the claim of this attempt is lost, besides when
// parent is. Its cancel function frees it.
func (o *Op) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	d := o.call.door
	d.mu.Lock()
	defer d.mu.Unlock()
	o.call.cancels = append(o.call.cancels, cancel)
	if o.call.lost {
		cancel()
	}
	return ctx, cancel
}

// Begin asks for an operation. It returns an Op: run the handler once, then call Op.End. Or it
// returns an Answer: nothing is to be run. Or an error: nothing ran; ErrStoreDown where there is no
// door, the context's own where ctx ended before. The request is the Door's until then.
func (d *Door) Begin(ctx context.Context, r *Request) (*Op, *Answer, error) {
	for _, err := range []error{r.err, ctx.Err()} {
		if err != nil {
			return nil, nil, err
		}
	}
	c := &call{door: d, request: r, news: make(chan news, 4)}
	if err := c.ask(); err != nil {
		return nil, nil, fmt.Errorf("hapax: %w", err)
	}
	select {
	case n := <-c.news:
		return c.hear(n)
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c.left = true; c.state {
	case asked:
		d.send(frame{kind: kindCancel, op: c.op})
	case running: // its RUN, or RECONCILE, is in news
		c.end(unheard[c.run.kind])
	}
	return nil, nil, ctx.Err()
}

// ask sends BEGIN.
func (c *call) ask() error {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	c.request.Nonce = hex.EncodeToString(nonce)
	f, err := newFrame(kindBegin, 0, c.request, c.request.Body)
	if err != nil {
		return err
	}
	d := c.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	} else if !f.fits(d.limit) {
		return fmt.Errorf("a request of %d bytes is over %d, or its members are too long", f.length(), d.limit)
	}
	for d.last++; d.last == 0 || d.calls[d.last] != nil; d.last++ {
	}
	c.op, f.op = d.last, d.last
	c.again, d.calls[c.op] = f, c
	d.send(f)
	d.changed.Broadcast() // run connects where nothing is
	return nil
}

// hear reads a call's news.
func (c *call) hear(n news) (*Op, *Answer, error) {
	if n.err != nil {
		return nil, nil, n.err
	}
	if n.frame.kind == kindAnswer {
		answer := &Answer{Body: n.frame.body}
		return nil, answer, n.frame.read(answer)
	}
	return &Op{call: c, run: c.run}, nil, nil
}

// End is how a handler ended: the members of END. One of Class and Status is needed.
type End struct {
	Class   string    `json:"class,omitempty"` // "final", "not_run", "failed", "unknown"; "": by Status
	Status  int       `json:"status,omitempty"`
	Headers [][2]Text `json:"headers,omitempty"`
	Body    []byte    `json:"-"` // over 16 MiB it is not kept: repeats get ErrGone

	// Kept is false where the body is not given, since it was passed on: repeats get ErrGone. Op.End sets it
	// where Body is over 16 MiB.
	Kept *bool `json:"body_kept,omitempty"`
}

// End reports how the handler ended, and waits until the outcome is stored. What it returns is as
// for Begin: an Op where the handler is to run after the reconcile hook. ErrIndeterminate: the door
// is gone, and whether the outcome was stored is not known; ask again with the same key.
func (o *Op) End(end End) (*Op, *Answer, error) {
	c, d := o.call, o.call.door
	if len(end.Body) > bodyMax {
		end.Body, end.Kept = nil, new(bool)
	}
	f, _ := newFrame(kindEnd, 0, end, end.Body)
	var over error
	d.mu.Lock()
	if !f.fits(d.limit) {
		over, f = fmt.Errorf("hapax: an outcome of %d bytes is over %d, or its headers are too long", f.length(), d.limit), unknown
	}
	if o.ended {
		d.mu.Unlock()
		panic("hapax: an attempt is ended twice")
	}
	o.ended = true
	if c.state == running {
		c.end(f)
	}
	d.mu.Unlock()
	if op, answer, err := c.hear(<-c.news); over == nil {
		return op, answer, err
	}
	return nil, nil, over
}
