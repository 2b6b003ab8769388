// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func one(context.Context, *Op) (int, error) { return 1, nil }

// The frames of docs/door.md are read as that page says, and END is written as there.
func TestFramesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/door.md")
	if err != nil {
		t.Skip("without the project's pages: ", err)
	}
	kinds := map[string]uint8{"HELLO": kindHello, "WELCOME": kindWelcome, "BEGIN": kindBegin, "RUN": kindRun,
		"RESUME": kindResume, "RECONCILE": kindReconcile, "END": kindEnd, "ANSWER": kindAnswer, "REPLAY": kindAnswer,
		"BEAT": kindBeat, "LOST": kindLost, "CANCEL": kindCancel, "FAULT": kindFault}
	remark := regexp.MustCompile(`;.*|\s`)
	for _, block := range regexp.MustCompile("(?s)```hex ([A-Z]+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		raw, err := hex.DecodeString(strings.Join(remark.Split(block[2], -1), ""))
		if err != nil {
			t.Fatal(block[1], err)
		}
		f, err := readFrame(bytes.NewReader(raw))
		if err != nil || f.kind != kinds[block[1]] || kinds[block[1]] == 0 {
			t.Errorf("%s is read as kind %d, %v", block[1], f.kind, err)
		}
		same(t, block[1], append(f.head(), f.body...), raw)
		if block[1] == "END" {
			ours, _ := newFrame(kindEnd, 1, End{Class: "final"}, []byte(`{"refund":"re_1"}`))
			same(t, "END", append(ours.head(), ours.body...), raw)
		}
		for cut := range raw {
			if _, err := readFrame(bytes.NewReader(raw[:cut])); err == nil {
				t.Errorf("%s cut at %d is read as a frame", block[1], cut)
			}
		}
		delete(kinds, block[1])
	}
	if len(kinds) > 0 {
		t.Errorf("the page has no %v", kinds)
	}
}

// A first call runs, and what it gave goes to the door before Do returns it. Members and kinds of a
// newer door are ignored, and frames may come in pieces.
func TestAFreshResult(t *testing.T) {
	p := play(t)
	d := p.dial()
	p.slowly = true
	out := start(d, func(_ context.Context, op *Op) (string, error) {
		return op.Key() + " " + op.ID(), CheckOp(op)
	}, Fingerprint(map[string]int{"amount": 5}), Hold, Retention(time.Hour), Owner("zoe"), Caller("a", "\xff"), What("pay"), Traceparent("00-1"))
	p.send(99, 1, map[string]int{"x": 1}, []byte("later"))
	begin := p.run("T")
	for name, want := range map[string]string{"scope": `"s"`, "key": `"k"`, "owner": `"zoe"`, "what": `"pay"`, "traceparent": `"00-1"`,
		"caller": `["a",{"base64":"/w=="}]`, "body": `"json"`, "content": `"{\"amount\":5}"`,
		"policy": `{"on_expired":"hold","retention":"3600000ms"}`} {
		same(t, name, begin[name], []byte(want))
	}
	if !regexp.MustCompile(`^"[0-9a-f]{32}"$`).Match(begin["nonce"]) {
		t.Errorf("a nonce of %s", begin["nonce"])
	}
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"final"`))
	same(t, "body", end["content"], []byte(`"\"k 00\""`))
	select {
	case early := <-out:
		t.Error("Do returned before ANSWER: ", early)
	default:
	}
	p.fresh(opOf(end))
	if r := got(t, out); r.value != "k 00" || r.err != nil {
		t.Error(r)
	}
}

// CheckOp says what an Op of played.run should not have.
func CheckOp(op *Op) error {
	if op.Attempt() != 1 || op.Fence() != 7 || op.Stale() || op.Token() != "" || op.Reconcile() {
		return errors.New("another Op")
	}
	return nil
}

// Every value is a result: it goes to the door and comes back as it was.
func TestFalsyResults(t *testing.T) {
	p := play(t)
	d := p.dial()
	back(t, p, d, 0, "0")
	back(t, p, d, "", `""`)
	back(t, p, d, false, "false")
	back(t, p, d, map[string]int(nil), "null")
	back(t, p, d, struct{}{}, "{}")
	back(t, p, d, []byte("\x00\xff"), "\x00\xff")
	back(t, p, d, []byte{}, "")
}

func back[T any](t *testing.T, p *played, d *Door, value T, kept string) {
	t.Helper()
	out := start(d, func(context.Context, *Op) (T, error) { return value, nil })
	p.run("T")
	end := p.expect(kindEnd)
	content, _ := json.Marshal(kept)
	same(t, "what is kept", end["content"], content)
	p.fresh(opOf(end))
	first := got(t, out)
	out = start(d, func(context.Context, *Op) (T, error) { panic("it runs twice") })
	again := p.expect(kindBegin)
	p.send(kindAnswer, opOf(again), map[string]any{"answer": "replay", "own": false, "status": 200}, []byte(kept))
	replayed := got(t, out)
	is, _ := json.Marshal(first.value)
	then, _ := json.Marshal(replayed.value)
	same(t, "the replay", then, is)
	if first.err != nil || replayed.err != nil {
		t.Error(first.err, replayed.err)
	}
}

// An error of the handler goes to its caller as it is, and to the door with its class.
func TestErrorsOfHandlers(t *testing.T) {
	p := play(t)
	d := p.dial()
	mine := errors.New("card declined")
	for class, err := range map[string]error{"failed": mine, "not_run": NotRun(mine), "unknown": Unknown(mine)} {
		out := start(d, func(context.Context, *Op) (int, error) { return 0, err })
		p.run("T")
		end := p.expect(kindEnd)
		same(t, "class", end["class"], []byte(`"`+class+`"`))
		p.fresh(opOf(end))
		if r := got(t, out); !errors.Is(r.err, mine) {
			t.Error(r.err)
		}
	}
	// on_failed=replay: the stored failure is an error again
	out := start(d, one)
	p.send(kindAnswer, opOf(p.expect(kindBegin)), map[string]any{"answer": "replay", "status": 500}, []byte("card declined"))
	if r := got(t, out); !errors.Is(r.err, ErrFailed) || !strings.Contains(r.err.Error(), "card declined") {
		t.Error(r.err)
	}
}

// A handler that panics has failed, and the panic goes on.
func TestAPanic(t *testing.T) {
	p := play(t)
	d := p.dial()
	out := make(chan any, 1)
	go func() {
		defer func() { out <- recover() }()
		_, _ = Do(context.Background(), d, Key("s", "k"), func(context.Context, *Op) (int, error) { panic("mine") })
	}()
	p.run("T")
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"failed"`))
	p.fresh(opOf(end))
	if said := got(t, out); said != "mine" {
		t.Error(said)
	}
}

// odd is a result whose encoding panics.
type odd struct{}

func (odd) MarshalJSON() ([]byte, error) { panic("odd") }

// A panic behind the handler's end does not say that the handler has failed: its effect has happened.
func TestAPanicOfAResult(t *testing.T) {
	p := play(t)
	d := p.dial()
	out := make(chan any, 1)
	go func() {
		defer func() { out <- recover() }()
		_, _ = Do(context.Background(), d, Key("s", "k"), func(context.Context, *Op) (odd, error) { return odd{}, nil })
	}()
	p.run("T")
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"unknown"`))
	p.fresh(opOf(end))
	if said := got(t, out); said != "odd" {
		t.Error(said)
	}
}

// A hook that panics cannot tell, so nothing stays in flight, and the panic goes on.
func TestAPanicOfAHook(t *testing.T) {
	p := play(t)
	d := p.dial()
	out := make(chan any, 1)
	go func() {
		defer func() { out <- recover() }()
		_, _ = Do(context.Background(), d, Key("s", "k"), one,
			Reconcile(func(context.Context, *Op) (int, bool, error) { panic("mine") }))
	}()
	p.send(kindReconcile, opOf(p.expect(kindBegin)), map[string]any{"ticket": "R", "stale": true}, nil)
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"unknown"`))
	p.send(kindAnswer, opOf(end), map[string]any{"answer": "unknown"}, nil)
	if said := got(t, out); said != "mine" {
		t.Error(said)
	}
}

// A result that JSON cannot say: the effect has happened, so the outcome is unknown.
func TestAResultThatCannotBeKept(t *testing.T) {
	p := play(t)
	out := start(p.dial(), func(context.Context, *Op) (chan int, error) { return make(chan int), nil })
	p.run("T")
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"unknown"`))
	p.fresh(opOf(end))
	if r := got(t, out); r.err == nil {
		t.Error("no error")
	}
}

// Every other answer is an error by its name, with its fields.
func TestAnswersAreErrors(t *testing.T) {
	p := play(t)
	d := p.dial()
	for name, is := range map[string]error{"in_flight": ErrInFlight, "unknown": ErrUnknown, "mismatch": ErrMismatch,
		"failed": ErrFailed, "gone": ErrGone, "store_down": ErrStoreDown, "missing_key": ErrMissingKey,
		"bad_key": ErrBadKey, "missing_owner": ErrMissingOwner, "too_large": ErrTooLarge, "limited": ErrLimited} {
		out := start(d, one)
		p.send(kindAnswer, opOf(p.expect(kindBegin)), map[string]any{"answer": name, "retry_after_ms": 1500,
			"differs": "caller", "attempt": 3, "fence": 9, "text": "why"}, nil)
		var e *Error
		r := got(t, out)
		if !errors.Is(r.err, is) || !errors.As(r.err, &e) || e.RetryAfter != 1500*time.Millisecond || e.Seconds() != "2" ||
			e.Differs != "caller" || e.Attempt != 3 || e.Fence != 9 || e.Text != "why" {
			t.Errorf("%s: %#v", name, r.err)
		}
		if is != ErrUnknown && errors.Is(r.err, ErrUnknown) {
			t.Errorf("%s is unknown, too", name)
		}
	}
	out := start(d, one)
	p.send(kindFault, opOf(p.expect(kindBegin)), map[string]any{"error": "invalid", "text": "key of 256 bytes", "kind": 3}, nil)
	if r := got(t, out); r.err == nil || !strings.Contains(r.err.Error(), "key of 256 bytes") {
		t.Error(r.err)
	}
	for _, name := range []string{"unavailable", "nomem"} { // a door that ends, or has no room, ran nothing
		out := start(d, one)
		p.send(kindFault, opOf(p.expect(kindBegin)), map[string]any{"error": name, "text": "why", "kind": kindBegin}, nil)
		if r := got(t, out); !errors.Is(r.err, ErrStoreDown) || !strings.Contains(r.err.Error(), "why") {
			t.Error(r.err)
		}
	}
}

// Of what was told to run no FAULT says that nothing ran. Where END is wrong the caller is told so.
func TestARefusalOfWhatRan(t *testing.T) {
	p := play(t)
	d := p.dial()
	for _, c := range []struct {
		says string
		of   uint8
		is   error
	}{{"invalid", kindResume, ErrIndeterminate}, {"nomem", kindEnd, ErrIndeterminate}, {"nomem", kindBegin, ErrIndeterminate},
		{"invalid", kindEnd, answerError("invalid")}} {
		out := start(d, one)
		op := opOf(p.run("T"))
		p.expect(kindEnd)
		p.send(kindFault, op, map[string]any{"error": c.says, "text": "why", "kind": c.of}, nil)
		if r := got(t, out); !errors.Is(r.err, c.is) {
			t.Error(c, r.err)
		}
	}
}

// NotRun counts for the call whose handler returned it, and for no call around that one. It stays the error that it was.
func TestNotRunIsOfItsOwnCall(t *testing.T) {
	p := play(t)
	d := p.dial()
	cause := errors.New("busy")
	busy := NotRun(cause)
	out := start(d, func(ctx context.Context, _ *Op) (int, error) {
		_, err := Do(ctx, d, Key("s", "inner"), func(context.Context, *Op) (int, error) { return 0, busy })
		return 0, fmt.Errorf("no mail: %w", err)
	})
	outer := opOf(p.run("OUTER"))
	p.run("INNER")
	end := p.expect(kindEnd)
	same(t, "class of the inner one", end["class"], []byte(`"not_run"`))
	p.fresh(opOf(end))
	same(t, "class of the outer one", p.expect(kindEnd)["class"], []byte(`"failed"`))
	p.fresh(outer)
	var e *Error
	if r := got(t, out); !errors.Is(r.err, busy) || !errors.Is(r.err, cause) || errors.As(r.err, &e) ||
		r.err.Error() != "no mail: busy" {
		t.Error(r.err)
	}
}

// Whatever else an error has in it has its own word. What the call's own handler said counts.
func TestTheClassOfAnErrorsTree(t *testing.T) {
	busy := errors.New("busy")
	spent := spentError{NotRun(busy)}
	for _, c := range []struct {
		err  error
		want string
	}{
		{spent, "failed"}, {many{spent, busy}, "failed"}, {many{spent, NotRun(busy)}, "not_run"},
		{many{spent, Unknown(busy)}, "unknown"}, {many{busy, fmt.Errorf("all: %w", many{spent, Unknown(busy)})}, "unknown"},
		{NotRun(spent), "not_run"},
	} {
		if got := failure(context.Background(), &Op{}, c.err).Class; got != c.want {
			t.Errorf("%v is %s and not %s", c.err, got, c.want)
		}
	}
}

// many is errors.Join of later Gos.
type many []error

func (m many) Error() string   { return fmt.Sprint([]error(m)) }
func (m many) Unwrap() []error { return m }

// A key may also come as the header has it; the door reads it.
func TestAKeyOfAHeader(t *testing.T) {
	p := play(t)
	out := start(p.dial(), func(context.Context, *Op) (int, error) { return 7, nil },
		func(r *Request) { r.Key, r.KeyHeader = "", []string{`"k"`} })
	op := opOf(p.run("T"))
	p.expect(kindEnd)
	p.fresh(op)
	if r := got(t, out); r.err != nil || r.value != 7 {
		t.Error(r.err)
	}
}

// LOST ends the handler's context, and the answer says what became of the operation.
func TestALostClaim(t *testing.T) {
	p := play(t)
	out := start(p.dial(), func(ctx context.Context, _ *Op) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	op := opOf(p.run("T"))
	p.send(kindLost, op, nil, nil)
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"unknown"`))
	p.send(kindAnswer, op, map[string]any{"answer": "replay", "own": false}, []byte("5"))
	if r := got(t, out); r.value != 5 || r.err != nil {
		t.Error(r)
	}
}

// A caller that goes away before the run gives up: CANCEL; where RUN crosses END not_run, where RECONCILE
// crosses END unknown.
func TestACallerThatLeaves(t *testing.T) {
	p := play(t)
	d := p.dial()
	for kind, class := range map[uint8]string{kindRun: `"not_run"`, kindReconcile: `"unknown"`} {
		ctx, cancel := context.WithCancel(context.Background())
		out := make(chan error, 1)
		go func() {
			_, err := Do(ctx, d, Key("s", "k"), one)
			out <- err
		}()
		op := opOf(p.expect(kindBegin))
		cancel()
		if err := got(t, out); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		p.expect(kindCancel)
		p.send(kind, op, map[string]any{"ticket": "T"}, nil)
		end := p.expect(kindEnd)
		same(t, "class", end["class"], []byte(class))
		p.fresh(op)
		if _, err := Do(ctx, d, Key("s", "k"), one); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// The door dies before RUN: the same BEGIN goes to the next door, nonce and all.
func TestTheDoorDiesBeforeTheRun(t *testing.T) {
	p := play(t)
	out := start(p.dial(), one)
	first := p.expect(kindBegin)
	p.hangUp()
	p.accept()
	begin := p.run("T")
	same(t, "BEGIN", begin["bytes"], first["bytes"])
	p.fresh(opOf(p.expect(kindEnd)))
	if r := got(t, out); r.value != 1 || r.err != nil {
		t.Error(r)
	}
}

// The door dies while a step runs: both are resumed, the operation first, and no result is lost.
func TestTheDoorDiesInAStep(t *testing.T) {
	p := play(t)
	proceed := make(chan struct{})
	out := start(p.dial(), func(ctx context.Context, op *Op) (int, error) {
		return Step(ctx, op, "charge", func(ctx context.Context, s *Op) (int, error) {
			<-proceed
			return 3, ctx.Err()
		})
	})
	op := opOf(p.run("OUTER"))
	begin := p.run("STEP")
	same(t, "step", begin["step"], []byte(`"charge"`))
	same(t, "in", begin["in"], []byte("1"))
	p.hangUp()
	p.accept()
	resume := p.expect(kindResume)
	same(t, "ticket", resume["ticket"], []byte(`"OUTER"`))
	if opOf(resume) != op {
		t.Error("another op")
	}
	resume = p.expect(kindResume)
	same(t, "ticket", resume["ticket"], []byte(`"STEP"`))
	same(t, "in", resume["in"], []byte("1"))
	close(proceed)
	p.fresh(opOf(p.expect(kindEnd)))
	p.fresh(opOf(p.expect(kindEnd)))
	if r := got(t, out); r.value != 3 || r.err != nil {
		t.Error(r)
	}
}

// A handler may end before its steps. The next door is told of all calls before it is told of an end.
func TestTheDoorDiesUnderAHastyHandler(t *testing.T) {
	p := play(t)
	proceed, steps := make(chan struct{}), make(chan error, 2)
	out := start(p.dial(), func(ctx context.Context, op *Op) (int, error) {
		for _, name := range []string{"charge", "mail"} {
			name := name
			go func() {
				_, err := Step(context.Background(), op, name, one)
				steps <- err
			}()
			<-proceed
		}
		return 0, errors.New("hasty")
	})
	p.run("OUTER")
	p.run("STEP")
	p.expect(kindEnd)
	proceed <- struct{}{}
	p.expect(kindBegin)
	proceed <- struct{}{}
	p.expect(kindEnd)
	p.hangUp()
	p.accept()
	for i, kind := range []uint8{kindResume, kindResume, kindBegin, kindEnd, kindEnd} {
		if op, want := opOf(p.expect(kind)), []uint32{1, 2, 3, 1, 2}[i]; op != want {
			t.Errorf("frame %d is of op %d and not %d", i, op, want)
		}
	}
	for op := uint32(3); op > 0; op-- {
		p.fresh(op)
	}
	_, _, r := got(t, steps), got(t, steps), got(t, out)
	if r.err == nil || r.err.Error() != "hasty" {
		t.Error(r)
	}
}

// The door dies between END and ANSWER: RESUME and the same END go to the next door.
func TestTheDoorDiesAfterTheEnd(t *testing.T) {
	p := play(t)
	out := start(p.dial(), one)
	p.run("T")
	first := p.expect(kindEnd)
	p.hangUp()
	p.accept()
	p.expect(kindResume)
	end := p.expect(kindEnd)
	same(t, "END", end["bytes"], first["bytes"])
	p.fresh(opOf(end))
	if r := got(t, out); r.value != 1 || r.err != nil {
		t.Error(r)
	}
}

// A run without a ticket cannot be resumed: the caller gets what the handler gave.
func TestAnUnprotectedRun(t *testing.T) {
	p := play(t)
	proceed := make(chan struct{})
	d := p.dial()
	out := start(d, func(context.Context, *Op) (int, error) { <-proceed; return 4, nil })
	p.run("")
	p.hangUp()
	p.listener.Close()
	close(proceed)
	if r := got(t, out); r.value != 4 || r.err != nil {
		t.Error(r)
	}
}

// What the door said before it left is heard, also where a write finds first that it has left.
func TestAWordBeforeTheDoorLeaves(t *testing.T) {
	for i := 0; i < 100; i++ {
		p := play(t)
		d := p.dial()
		out := start(d, one)
		begin := p.expect(kindBegin)
		d.mu.Lock()
		p.send(kindAnswer, 99, map[string]any{}, nil) // what reads waits here for d.mu
		p.send(kindRun, opOf(begin), map[string]any{"attempt": 1, "ticket": ""}, nil)
		p.hangUp()
		p.listener.Close()
		d.send(frame{kind: kindBeat})
		d.mu.Unlock()
		if r := got(t, out); r.value != 1 || r.err != nil {
			t.Fatal(i, r.value, r.err)
		}
	}
}

// The hook is asked before a stale operation runs again.
func TestReconcile(t *testing.T) {
	p := play(t)
	d := p.dial()
	for _, c := range []struct {
		happened bool
		err      error
		class    string
	}{{true, nil, `"final"`}, {false, nil, `"not_run"`}, {false, errors.New("?"), `"unknown"`}} {
		out := start(d, one, Reconcile(func(context.Context, *Op) (int, bool, error) { return 2, c.happened, c.err }))
		begin := p.expect(kindBegin)
		same(t, "reconciles", begin["reconciles"], []byte("true"))
		op := opOf(begin)
		p.send(kindReconcile, op, map[string]any{"ticket": "R", "stale": true}, nil)
		end := p.expect(kindEnd)
		same(t, "class", end["class"], []byte(c.class))
		want := 2
		switch {
		case c.happened:
			p.send(kindAnswer, op, map[string]any{"answer": "replay"}, []byte("2"))
		case c.err == nil:
			p.send(kindRun, op, map[string]any{"ticket": "T"}, nil)
			p.expect(kindEnd)
			p.fresh(op)
			want = 1
		default:
			p.send(kindAnswer, op, map[string]any{"answer": "unknown"}, nil)
			want = 0
		}
		if r := got(t, out); r.value != want || errors.Is(r.err, ErrUnknown) != (c.err != nil) {
			t.Error(c, r)
		}
	}
}

// While an operation is in hand the process beats, and not before.
func TestBeats(t *testing.T) {
	p := play(t)
	p.beat = 5
	d := p.dial()
	proceed := make(chan struct{})
	out := start(d, func(context.Context, *Op) (int, error) { <-proceed; return 1, nil })
	p.run("T")
	if p.beats > 1 {
		t.Errorf("%d beats with nothing in hand", p.beats)
	}
	for range [3]int{} {
		p.expect(kindBeat)
	}
	close(proceed)
	p.fresh(opOf(p.expect(kindEnd)))
	got(t, out)
}

// A frame that the door does not understand is no reason to send it for ever.
func TestAFaultOfTheConnection(t *testing.T) {
	p := play(t)
	out := start(p.dial(), one)
	p.expect(kindBegin)
	p.send(kindFault, 0, map[string]any{"error": "invalid", "text": "no frame"}, nil)
	if r := got(t, out); !errors.Is(r.err, ErrStoreDown) || !strings.Contains(r.err.Error(), "no frame") {
		t.Error(r.err)
	}
}

// A door that refuses this user says so at once.
func TestARefusal(t *testing.T) {
	p := play(t)
	go func() {
		p.conn, _ = p.listener.Accept()
		p.send(kindFault, 0, map[string]any{"error": "refused", "text": "not of the group"}, nil)
		p.hangUp()
	}()
	if _, err := Dial(context.Background(), "unix:"+p.listener.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "not of the group") {
		t.Error(err)
	}
}

// A request that cannot be sent is an error, and an outcome is not kept; the connection goes on.
func TestFramesOverTheLimit(t *testing.T) {
	p := play(t)
	d := p.dial()
	if r := got(t, start(d, one, Fingerprint(make([]byte, frameMax)))); r.err == nil {
		t.Error("a request over the limit is sent")
	}
	long := strings.Repeat("o", 1<<20)
	if r := got(t, start(d, one, Owner(long))); r.err == nil {
		t.Error("members over the limit are sent")
	}
	ended := make(chan error, 1)
	go func() {
		op, _, err := d.Begin(context.Background(), &Request{Key: "k"})
		if err == nil {
			_, _, err = op.End(End{Status: 200, Headers: [][2]Text{{"A", Text(long)}}})
		}
		ended <- err
	}()
	p.run("T")
	over := p.expect(kindEnd)
	same(t, "class", over["class"], []byte(`"unknown"`))
	p.fresh(opOf(over))
	if err := got(t, ended); err == nil {
		t.Error("headers over the limit are sent")
	}
	out := start(d, func(context.Context, *Op) ([]byte, error) { return make([]byte, bodyMax+1), nil })
	p.run("T")
	end := p.expect(kindEnd)
	same(t, "class", end["class"], []byte(`"final"`))
	same(t, "body_kept", end["body_kept"], []byte(`false`))
	p.fresh(opOf(end))
	if r := got(t, out); r.err != nil {
		t.Error(r.err)
	}
}

// A thousand at once share the connection.
func TestAThousandAtOnce(t *testing.T) {
	p := play(t)
	d := p.dial()
	outs := make([]chan result[int], 1000)
	for i := range outs {
		outs[i] = start(d, one)
	}
	for ended := 0; ended < len(outs); {
		f, err := readFrame(p.conn)
		if err != nil {
			t.Fatal(err)
		}
		switch f.kind {
		case kindBegin:
			p.send(kindRun, f.op, map[string]any{"ticket": "T"}, nil)
		case kindEnd:
			p.fresh(f.op)
			ended++
		}
	}
	for _, out := range outs {
		if r := got(t, out); r.value != 1 || r.err != nil {
			t.Error(r)
		}
	}
}

// Where there is no door any more, handlers are told, and callers learn that nothing is known.
func TestNoDoor(t *testing.T) {
	p := play(t)
	d := p.dial()
	d.mu.Lock()
	d.timeout = 100 * time.Millisecond // to connect again
	d.mu.Unlock()
	runs := make(chan bool)
	out := start(d, func(ctx context.Context, _ *Op) (int, error) {
		close(runs)
		<-ctx.Done()
		return 0, ctx.Err()
	})
	p.run("T")
	got(t, runs) // otherwise RUN may be lost, and nothing ran
	p.listener.Close()
	p.hangUp()
	if r := got(t, out); !errors.Is(r.err, ErrIndeterminate) {
		t.Error(r.err)
	}
	d.Close()
	if _, err := Do(context.Background(), d, Key("s", "k"), one); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	if _, err := Dial(context.Background(), "tcp:1"); err == nil {
		t.Error("an address that is none")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, "unix:/nonexistent/s"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
