// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const errorMax = 16 << 10 // characters of an error that are kept

// OpKey names an operation.
type OpKey struct{ Scope, Key string }

// Key returns the name of an operation: a scope ("refunds") and a key that is the same whenever the
// same thing is meant ("order-17"), of 1 to 255 bytes each. Without a key nothing runs.
func Key(scope, key string) OpKey { return OpKey{scope, key} }

// Option is more about an operation than its key.
type Option func(*Request)

// Fingerprint says what makes the request this request: the same key with another fingerprint is
// ErrMismatch. v is written as JSON, which is compared however it is spelled; a []byte counts as it
// is. Give it the arguments of the function.
func Fingerprint(v any) Option {
	return func(r *Request) {
		raw, ok := v.([]byte)
		if r.Body, r.BodyPart = raw, "body"; !ok {
			r.Body, r.err = json.Marshal(v)
			r.BodyPart = "json"
		}
	}
}

// Owner says whose key it is: each owner has keys of its own. An empty owner gets ErrMissingOwner.
func Owner(owner string) Option { return func(r *Request) { r.Owner = (*Text)(&owner) } }

// Caller says who asks: another caller with the same key gets ErrMismatch, and no part of the outcome. A caller without
// parts, or with empty parts only, gets ErrMissingOwner.
func Caller(parts ...string) Option {
	if len(parts) == 0 {
		parts = []string{""}
	}
	return func(r *Request) {
		for _, part := range parts {
			r.Caller = append(r.Caller, Text(part))
		}
	}
}

// What says to operators what the operation is. No key, no secret; it is cut at 255 bytes.
func What(what string) Option { return func(r *Request) { r.What = what } }

// Traceparent says where the caller stands among traces (W3C Trace Context). It is kept with the outcome.
func Traceparent(of string) Option { return func(r *Request) { r.Traceparent = of } }

// Policy sets a policy by the name and value that it has everywhere: Policy("attempts_max", "3").
// What it does not set is set for the scope by hapax door --policy FILE.
func Policy(name, value string) Option {
	return func(r *Request) {
		if r.Policy == nil {
			r.Policy = map[string]string{}
		}
		r.Policy[name] = value
	}
}

// Hold is on_expired=hold: after an attempt that died, or failed, nothing runs before an operator has
// decided. With Policy("on_failed", "retry") a failure runs again.
func Hold(r *Request) { Policy("on_expired", "hold")(r) }

// Lease is how long an attempt may go without a sign of life. A whole number of milliseconds, as in
// all of these.
func Lease(d time.Duration) Option { return Policy("lease", milliseconds(d)) }

// Retention is how long the outcome is kept and replayed.
func Retention(d time.Duration) Option { return Policy("retention", milliseconds(d)) }

// Wait is how long a repeat waits for the attempt in flight; 0: it gets ErrInFlight at once.
func Wait(d time.Duration) Option { return Policy("wait", milliseconds(d)) }

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) + "ms" }

// Reconcile is on_expired=reconcile: before an operation runs again whose attempt died, the hook is
// asked whether its effect happened. True: it did, and the value is the operation's result. False:
// it did not, and the handler runs. An error: nobody can tell (ErrUnknown).
func Reconcile[T any](hook func(context.Context, *Op) (T, bool, error)) Option {
	return func(r *Request) {
		Policy("on_expired", "reconcile")(r)
		r.Reconciles = true
		r.hook = func(ctx context.Context, op *Op) (any, bool, error) { return hook(ctx, op) }
	}
}

// Tell writes the door's answer to into: whether it is a replay, whether it is recorded, the fence.
func Tell(into *Answer) Option { return func(r *Request) { r.tell = into } }

// Classes of the error that a handler returns. Without one an error is "failed", and "unknown" where it is that of a
// handler's context that has ended.
type classError struct {
	class string
	error
}

func (e classError) Unwrap() error { return e.error }

// spentError is an error whose class was said of another call: all that it was, but for that.
type spentError struct{ error }

func (e spentError) Is(target error) bool { return errors.Is(e.error, target) }

func (e spentError) As(target any) bool {
	_, isClass := target.(*classError)
	return !isClass && errors.As(e.error, target)
}

// NotRun says of a handler's error that surely nothing happened: a retry runs. Once a step was begun the
// attempt has failed all the same: the step may have had its effect. It counts for the call whose handler
// returned it alone: where the handler of another call passes it on, that one has failed.
func NotRun(err error) error { return classError{"not_run", err} }

// Unknown says of a handler's error that nobody can tell what happened: on_expired decides.
func Unknown(err error) error { return classError{"unknown", err} }

// Do runs fn at most once for this key, and gives each caller the result of that run.
//
// The result is stored before Do returns it. It is kept as JSON; a []byte is kept as it is. Every
// value is a result, also nil, false, 0 and "". An error of fn is returned as it is, to this caller
// alone: the next one runs fn again, unless a policy says otherwise ([NotRun], [Unknown]). One that is
// NotRun is returned in another: compare it by errors.Is.
//
// fn's context ends when the claim is lost, besides when ctx does. While fn runs, the claim is kept
// alive, however long that takes (policy run_max: 1 h). When ctx ends before fn was begun, nothing
// runs.
//
// Other errors: an [*Error], which the Err constants tell apart; what the door says of an option
// that is wrong. With ErrIndeterminate fn ran, and whether the result is stored is not known: ask
// again with the same key.
func Do[T any](ctx context.Context, d *Door, key OpKey, fn func(context.Context, *Op) (T, error),
	options ...Option) (T, error) {
	return do(ctx, d, &Request{Scope: key.Scope, Key: Text(key.Key)}, fn, options)
}

// Step runs fn at most once for the operation of op and this name, and gives a later attempt of the
// operation the result. So a handler that died half-way goes on where it stopped. The name has 1 to
// 64 bytes, no ':' and no '.' at its begin, and is the same in every run. A step has no steps. In fn,
// s.Key() is the key to hand to the next service. Results and errors are as those of Do.
func Step[T any](ctx context.Context, op *Op, name string, fn func(context.Context, *Op) (T, error),
	options ...Option) (T, error) {
	op.stepped.Store(true)
	return do(ctx, op.call.door, &Request{In: op.call.op, Step: name}, fn, options)
}

func do[T any](ctx context.Context, d *Door, r *Request, fn func(context.Context, *Op) (T, error),
	options []Option) (result T, failed error) {
	var none T
	var end End
	for _, option := range options {
		option(r)
	}
	if r.Key == "" && r.Step == "" && len(r.KeyHeader) == 0 {
		return none, errors.New("hapax: no key: an operation without one would run unprotected")
	}
	op, answer, err := d.Begin(ctx, r)
	defer func() {
		if op != nil && !op.ended { // its handler, its hook or its result's encoding panicked; the panic goes on
			op.End(end)
		}
	}()
	for op != nil {
		if end = panicked[op.run.kind]; op.Reconcile() {
			end = ask(ctx, op, r.hook)
		} else {
			result, failed = run(ctx, op, fn, &end)
		}
		op, answer, err = op.End(end)
	}
	if err != nil {
		return none, err
	}
	if r.tell != nil {
		*r.tell = *answer
	}
	if answer.Own {
		return result, failed
	} else if answer.Answer != "replay" || answer.Status >= 400 { // under on_failed=replay a failure may be stored
		return none, errorOf(answer)
	}
	return decode[T](answer)
}

// panicked is what END says of a handler, or a hook, that panicked: it has failed; nobody can tell.
var panicked = map[uint8]End{
	kindRun: outcome("failed", 500, "text/plain", []byte("the handler panicked")), kindReconcile: {Class: "unknown"},
}

// run sets end, also for the case that it panics: once fn has returned nobody can tell.
func run[T any](ctx context.Context, op *Op, fn func(context.Context, *Op) (T, error), end *End) (value T, err error) {
	classed := classError{}
	ctx, cancel := op.Context(ctx)
	defer cancel()
	value, err = fn(ctx, op)
	if *end = panicked[kindReconcile]; err == nil {
		*end, err = success(value)
	} else if *end = failure(ctx, op, err); errors.As(err, &classed) && classed.class == "not_run" {
		err = spentError{err} // it was said of this call, and not of one whose handler passes it on
	}
	return value, err
}

func ask(ctx context.Context, op *Op, hook func(context.Context, *Op) (any, bool, error)) (end End) {
	value, happened, err := hook(ctx, op)
	if end.Class = "unknown"; err == nil && happened {
		end, _ = success(value)
	} else if err == nil {
		end.Class = "not_run"
	}
	return end
}

// success is a value's outcome. Where a value has no form in JSON, the effect has happened and its
// outcome is not known.
func success(value any) (End, error) {
	if raw, ok := value.([]byte); ok {
		return outcome("final", 200, "application/octet-stream", raw), nil
	}
	body, err := json.Marshal(value)
	if err != nil {
		return End{Class: "unknown"}, fmt.Errorf("hapax: the result cannot be kept: %w", err)
	}
	return outcome("final", 200, "application/json", body), nil
}

func outcome(class string, status int, kind Text, body []byte) End {
	return End{Class: class, Status: status, Headers: [][2]Text{{"Content-Type", kind}}, Body: body}
}

func failure(ctx context.Context, op *Op, err error) End {
	classed, class := classError{}, "failed"
	if errors.As(err, &classed) && !(classed.class == "not_run" && op.stepped.Load()) {
		class = classed.class
	} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		class = "unknown"
	}
	return outcome(class, 500, "text/plain", []byte(fmt.Sprintf("%.*s", errorMax, err.Error())))
}

// decode reads a stored result.
func decode[T any](answer *Answer) (T, error) {
	var result T
	if raw, ok := any(&result).(*[]byte); ok {
		*raw = answer.Body
	} else if err := json.Unmarshal(answer.Body, &result); err != nil {
		return result, fmt.Errorf("hapax: the stored result is no %T: %w", result, err)
	}
	return result, nil
}

func errorOf(a *Answer) error {
	e := &Error{Answer: a.Answer, Differs: a.Differs, RetryAfter: -1, Attempt: a.Attempt, Fence: a.Fence, Text: a.Text}
	if a.RetryAfterMS != nil {
		e.RetryAfter = time.Duration(*a.RetryAfterMS) * time.Millisecond
	}
	if e.Answer == "replay" { // of a failure
		e.Answer = string(ErrFailed)
	}
	if e.Text == "" && a.Status >= 400 {
		e.Text = string(a.Body)
	}
	return e
}
