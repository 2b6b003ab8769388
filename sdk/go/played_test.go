// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"testing"
	"time"
)

const patience = 30 * time.Second

// A played door: the test says what the door says, frame by frame. tests/sdk has the real one.
type played struct {
	t        *testing.T
	listener net.Listener
	conn     net.Conn
	beat     int  // beat_ms of WELCOME
	beats    int  // that came
	slowly   bool // write byte by byte
}

func play(t *testing.T) *played {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	p := &played{t: t, listener: listener, beat: 10000}
	t.Cleanup(func() { p.hangUp(); listener.Close() })
	return p
}

// dial returns a Door of the code under test, connected to this one.
func (p *played) dial(options ...DialOption) *Door {
	p.t.Helper()
	greeted := make(chan struct{})
	go func() { defer close(greeted); p.accept() }()
	d, err := Dial(context.Background(), "unix:"+p.listener.Addr().String(), options...)
	if err != nil {
		p.t.Fatal(err)
	}
	<-greeted
	p.t.Cleanup(func() { d.Close() })
	return d
}

func (p *played) accept() {
	conn, err := p.listener.Accept()
	if err != nil {
		p.t.Error(err)
		return
	}
	conn.SetDeadline(time.Now().Add(patience))
	p.conn = conn
	if hello := p.expect(kindHello); string(hello["hapax"]) != "1" {
		p.t.Errorf("HELLO says %s", hello)
	}
	p.send(kindWelcome, 0, map[string]any{"version": 1, "beat_ms": p.beat, "new": []int{1}}, nil)
}

func (p *played) hangUp() {
	if p.conn != nil {
		p.conn.Close()
	}
}

func (p *played) send(kind uint8, op uint32, meta any, body []byte) {
	f, err := newFrame(kind, op, meta, body)
	if err != nil {
		p.t.Error(err)
	}
	bytes := append(f.head(), body...)
	for len(bytes) > 0 {
		n := len(bytes)
		if p.slowly {
			n = 1
		}
		if _, err := p.conn.Write(bytes[:n]); err != nil {
			p.t.Error(err)
			return
		}
		bytes = bytes[n:]
	}
}

// expect returns the members of the next frame but BEATs, with "op" and "bytes" added.
func (p *played) expect(kind uint8) map[string]json.RawMessage {
	p.t.Helper()
	for {
		f, err := readFrame(p.conn)
		if err == nil && f.kind == kindBeat && kind != kindBeat {
			p.beats++
			continue
		}
		meta := map[string]json.RawMessage{}
		if err == nil {
			err = f.read(&meta)
		}
		if err != nil || f.kind != kind {
			p.t.Errorf("a frame of kind %d was expected: %d %s, %v", kind, f.kind, f.meta, err)
			return meta
		}
		op, _ := json.Marshal(f.op)
		whole, _ := json.Marshal(append(f.head(), f.body...))
		body, _ := json.Marshal(string(f.body))
		meta["op"], meta["bytes"], meta["content"] = op, whole, body
		return meta
	}
}

func opOf(meta map[string]json.RawMessage) (op uint32) {
	_ = json.Unmarshal(meta["op"], &op)
	return op
}

// run tells the next BEGIN to run, and returns it.
func (p *played) run(ticket string) map[string]json.RawMessage {
	p.t.Helper()
	begin := p.expect(kindBegin)
	p.send(kindRun, opOf(begin), map[string]any{"id": "00", "attempt": 1, "fence": 7, "key": "k", "ticket": ticket,
		"more": map[string]int{"a": 1}}, nil)
	return begin
}

func (p *played) fresh(op uint32) {
	p.send(kindAnswer, op, map[string]any{"answer": "fresh", "own": true, "recorded": true, "attempt": 1}, nil)
}

// A result is what Do gave.
type result[T any] struct {
	value T
	err   error
}

// start runs Do in a goroutine of its own.
func start[T any](d *Door, fn func(context.Context, *Op) (T, error), options ...Option) chan result[T] {
	out := make(chan result[T], 1)
	go func() {
		value, err := Do(context.Background(), d, Key("s", "k"), fn, options...)
		out <- result[T]{value, err}
	}()
	return out
}

func got[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func same(t *testing.T, what string, is, want []byte) {
	t.Helper()
	if !bytes.Equal(is, want) {
		t.Errorf("%s is\n%s\nand not\n%s", what, is, want)
	}
}
