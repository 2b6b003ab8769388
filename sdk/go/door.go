// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

const connectPause = 50 * time.Millisecond // from one try to the next

var errClosed = errors.New("the door was closed by the program")

// Door is a connection to hapax door. All goroutines of a process share one. If the connection is
// lost, the Door connects again, and what handlers give meanwhile is not lost.
//
// Three goroutines belong to a Door: one connects and reads, one writes, one beats. None of them
// waits for a handler.
type Door struct {
	path    string
	timeout time.Duration // how long to try to connect
	ready   chan error    // the end of the first try

	mu      sync.Mutex // guards what is below, and all fields of calls
	changed *sync.Cond // queue, calls, conn or closed
	conn    net.Conn   // nil while there is none
	queue   []frame    // to be written to conn
	calls   map[uint32]*call
	last    uint32 // op of the newest call
	limit   int    // of a frame's length
	closed  bool
}

type state int

const (
	asked   state = iota // BEGIN was sent
	running              // RUN or RECONCILE came
	ended                // END was sent, or the last word is in news
)

// A call is an op in hand.
type call struct {
	door    *Door
	op      uint32
	request *Request
	run     told  // what the last RUN or RECONCILE said
	again   frame // BEGIN while asked, END while ended: to be sent again on a new connection
	state   state
	left    bool     // nobody waits for it: it is given up where it was not run
	cancels []func() // of the handler's contexts
	lost    bool
	news    chan news // has room for RECONCILE, RUN and the last word
}

type news struct {
	frame
	err error
}

// Dial connects to a door. address is "unix:PATH"; "" stands for the environment variable
// HAPAX_DOOR, or else for unix:/run/hapax/door.sock. Where nobody listens yet, Dial tries again until
// ctx ends, 10 s at most ([ConnectTimeout]).
func Dial(ctx context.Context, address string, options ...DialOption) (*Door, error) {
	for _, other := range []string{os.Getenv("HAPAX_DOOR"), "unix:/run/hapax/door.sock"} {
		if address == "" {
			address = other
		}
	}
	if !strings.HasPrefix(address, "unix:") {
		return nil, fmt.Errorf("hapax: the door's address %q is not unix:PATH", address)
	}
	d := &Door{path: address[len("unix:"):], timeout: 10 * time.Second, ready: make(chan error, 1),
		calls: map[uint32]*call{}, limit: frameMax}
	d.changed = sync.NewCond(&d.mu)
	for _, option := range options {
		option(d)
	}
	go d.run()
	var err error
	select {
	case err = <-d.ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("hapax: no door at %s: %w", address, err)
	}
	return d, nil
}

// DialOption is a setting of a Door.
type DialOption func(*Door)

// ConnectTimeout is how long to try to connect where nobody listens, at first and when the connection
// was lost. Then callers get ErrStoreDown, or ErrIndeterminate where their handler ran.
func ConnectTimeout(d time.Duration) DialOption { return func(door *Door) { door.timeout = d } }

// Close closes the connection. The door ends what is in hand as unknown: close when nothing is.
func (d *Door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn != nil {
		d.conn.Close()
	}
	d.fail(errClosed)
	d.changed.Broadcast()
	return nil
}

// run connects whenever calls are in hand, and reads until the connection is lost.
func (d *Door) run() {
	for closed := false; !closed; {
		conn, w, err := d.greet()
		select {
		case d.ready <- err:
		default: // not the first time
		}
		if err == nil {
			err = d.serve(conn, w)
			time.Sleep(connectPause) // a door that hangs up each time is not asked for ever without a rest
		}
		d.mu.Lock()
		if err != nil {
			d.fail(err)
		}
		for len(d.calls) == 0 && !d.closed {
			d.changed.Wait()
		}
		closed = d.closed
		d.mu.Unlock()
	}
}

// greet connects and reads WELCOME: again and again, until the time is over or the door refuses.
func (d *Door) greet() (conn net.Conn, w welcome, err error) {
	for deadline := time.Now().Add(d.timeout); ; time.Sleep(connectPause) {
		if conn, err = net.DialTimeout("unix", d.path, time.Until(deadline)); err == nil {
			conn.SetDeadline(deadline)
			if w, err = hello(conn); err == nil {
				conn.SetDeadline(time.Time{})
				return conn, w, nil
			}
			conn.Close()
		}
		var fault *Error
		d.mu.Lock()
		over := d.closed || time.Now().After(deadline)
		d.mu.Unlock()
		if over || errors.As(err, &fault) && fault.Answer != "unavailable" {
			return nil, w, err
		}
	}
}

type welcome struct {
	Version  int   `json:"version"`
	BeatMS   int64 `json:"beat_ms"`
	FrameMax int   `json:"frame_max"`
}

func hello(conn net.Conn) (w welcome, err error) {
	f, _ := newFrame(kindHello, 0, map[string]any{"hapax": 1, "client": "go/0.1", "pid": os.Getpid()}, nil)
	conn.Write(f.head()) // a door that turns us away says why, even where it did not read
	f, err = readFrame(conn)
	w.FrameMax = frameMax
	if err == nil && f.kind == kindFault {
		err, _ = f.fault()
	} else if err == nil {
		err = f.read(&w)
	}
	if err == nil && (f.kind != kindWelcome || w.Version != 1 || w.BeatMS <= 0) {
		err = &Error{Answer: "unsupported", Text: fmt.Sprintf("the door speaks version %d", w.Version)}
	}
	return w, err
}

// serve resumes the calls in hand, and reads. An error says that no other connection would be better.
func (d *Door) serve(conn net.Conn, w welcome) (broken error) {
	d.mu.Lock()
	d.conn, d.queue, d.limit = conn, nil, w.FrameMax
	d.resume()
	go d.write(conn)
	go d.beat(conn, time.Duration(w.BeatMS)*time.Millisecond)
	d.mu.Unlock()
	from := bufio.NewReaderSize(conn, 64<<10)
	for broken == nil {
		f, err := readFrame(from)
		if err != nil {
			break
		}
		d.mu.Lock()
		broken = d.take(f)
		d.mu.Unlock()
	}
	conn.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = nil
	for _, c := range d.calls {
		if c.left && c.state == asked {
			c.finish(news{})
		} else if c.state != asked && c.run.Ticket == "" { // it runs without the store
			c.finish(news{frame: frame{kind: kindAnswer, meta: []byte(`{"answer":"bypass","own":true}`)}})
		}
	}
	d.changed.Broadcast()
	return broken
}

// write sends what is queued, in order, until the connection is lost.
func (d *Door) write(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.conn == conn {
		buffers := make(net.Buffers, 0, 2*len(d.queue))
		for i := range d.queue {
			buffers = append(buffers, d.queue[i].head(), d.queue[i].body)
		}
		d.queue = nil
		if len(buffers) == 0 {
			d.changed.Wait()
			continue
		}
		d.mu.Unlock()
		if _, err := buffers.WriteTo(conn); err != nil {
			conn.(*net.UnixConn).CloseWrite() // so that serve still reads what the door said last
		}
		d.mu.Lock()
	}
}

// beat tells the door that this process lives, while calls are in hand.
func (d *Door) beat(conn net.Conn, each time.Duration) {
	for ; ; time.Sleep(each) {
		d.mu.Lock()
		lives := d.conn == conn
		if lives && len(d.calls) > 0 {
			d.send(frame{kind: kindBeat})
		}
		d.mu.Unlock()
		if !lives {
			return
		}
	}
}

// ---- what is below is called with d.mu taken ---------------------------------------------

// send puts a frame into the queue. Without a connection it is dropped: resume sends what matters.
func (d *Door) send(f frame) {
	if d.conn != nil {
		d.queue = append(d.queue, f)
		d.changed.Broadcast()
	}
}

// resume tells a new connection of the calls in hand, the oldest first: an operation stands before its
// steps. ENDs stand last: the door would end an operation whose steps it does not know yet.
func (d *Door) resume() {
	for _, c := range d.calls {
		if c.state != asked {
			r := c.request
			f, _ := newFrame(kindResume, c.op, &Request{Ticket: c.run.Ticket, In: r.In, As: r.As, HTTP: r.HTTP,
				Reconciles: r.Reconciles}, nil)
			d.send(f)
		}
		if c.state != running {
			d.send(c.again)
		}
	}
	sort.Slice(d.queue, func(i, j int) bool {
		if a, b := d.queue[i], d.queue[j]; (a.kind == kindEnd) == (b.kind == kindEnd) {
			return int32(a.op-b.op) < 0
		}
		return d.queue[j].kind == kindEnd
	})
}

// fail ends all calls, for there is no door.
func (d *Door) fail(why error) {
	for _, c := range d.calls {
		c.refuse(&Error{Answer: "unavailable", RetryAfter: -1, Text: "no door: " + why.Error()}, 0)
	}
}

// take gives a frame to its call. An error says that door and client do not understand each other.
func (d *Door) take(f frame) error {
	c := d.calls[f.op]
	if f.kind == kindFault && f.op == 0 {
		err, _ := f.fault()
		return err
	}
	if c == nil {
		return nil // it is over for us
	}
	switch f.kind {
	case kindRun, kindReconcile:
		run := told{kind: f.kind}
		if err := f.read(&run); err != nil || c.state == running {
			return fmt.Errorf("hapax: a RUN that nobody waits for, or cannot read: %v", err)
		}
		c.state, c.run, c.again = running, run, frame{}
		if c.left {
			c.end(unheard[f.kind])
		} else {
			c.news <- news{frame: f}
		}
	case kindLost:
		c.lose()
	case kindAnswer:
		c.finish(news{frame: f})
	case kindFault:
		if err, of := f.fault(); of != kindBeat && of != kindCancel {
			c.refuse(err, of)
		}
	}
	return nil
}

var (
	unknown = frame{kind: kindEnd, meta: []byte(`{"class":"unknown"}`)}
	// unheard is what END says of a RUN or RECONCILE that nobody waits for.
	unheard = map[uint8]frame{kindRun: {kind: kindEnd, meta: []byte(`{"class":"not_run"}`)}, kindReconcile: unknown}
)

// end sends END.
func (c *call) end(end frame) {
	end.op = c.op
	c.state, c.again = ended, end
	c.door.send(end)
}

// lose tells the handler, if there is one, that the claim is lost.
func (c *call) lose() {
	for _, cancel := range c.cancels {
		cancel()
	}
	c.cancels, c.lost = nil, true
}

// refuse ends a call by a FAULT about a frame of kind of. What was not told to run did not run: where the door is away,
// ends or has no room it may be asked for again. Of what was told nobody knows, unless its END is at fault.
func (c *call) refuse(fault *Error, of uint8) {
	passes := fault.Answer == "unavailable" || fault.Answer == "nomem"
	if c.state != asked && (passes || of != kindEnd) {
		fault.Answer = string(ErrIndeterminate)
	} else if passes {
		fault.Answer = string(ErrStoreDown)
	}
	c.lose()
	c.finish(news{err: fault})
}

// finish gives the call its last word. The op's number is free again.
func (c *call) finish(last news) {
	delete(c.door.calls, c.op)
	c.state, c.again = ended, frame{}
	c.news <- last
}
