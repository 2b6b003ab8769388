// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"time"

	"hapax.example/hapax"
)

const bodyMax = 16 << 20 // bytes of a request or a response that the door takes

type opKey struct{}

// OpOf returns the attempt that this request is, within a handler of [Once]: its key, its fence, and
// what hapax.Step asks for. Nil where the request runs without one.
func OpOf(ctx context.Context) *hapax.Op {
	op, _ := ctx.Value(opKey{}).(*hapax.Op)
	return op
}

// Once runs a handler once for each Idempotency-Key, and gives every repeat the first response.
//
// Method, host, path, query and body make the request this request; the credentials that it carries
// make its caller, unless an option names an Owner or a Caller ([By]). The response is kept as it is,
// with its status deciding what a retry gets (docs/nginx.md, "What a status means"), and is sent once
// it is stored; so it cannot be streamed. One over 16 MiB is passed on as it is written, and is not
// kept: every repeat is told that it is gone. Requests with the methods GET, HEAD, OPTIONS and TRACE
// pass.
//
// The handler's context ends when the claim is lost, and not when the client goes away: what was
// begun is brought to its end, for the retry. A handler that panics has failed.
func Once(door *hapax.Door, options ...Option) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.Method {
			case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
				next.ServeHTTP(w, r)
			default:
				Serve(door, w, r, next.ServeHTTP, options...)
			}
		})
	}
}

// Option is a setting of [Once].
type Option func(*hapax.Request, *http.Request)

// Scope is the namespace of the keys: a route or a service.
func Scope(scope string) Option {
	return func(begin *hapax.Request, _ *http.Request) { begin.Scope = scope }
}

// With gives settings that are the same for all requests: hapax.Hold, hapax.Retention(…). HTTP has no reconcile
// hook: with hapax.Reconcile each request is refused, and nothing runs.
func With(options ...hapax.Option) Option {
	return func(begin *hapax.Request, _ *http.Request) {
		for _, option := range options {
			option(begin)
		}
	}
}

// By gives a setting that the request decides, such as its owner:
//
//	hapaxhttp.By(func(r *http.Request) hapax.Option { return hapax.Owner(userOf(r)) })
func By(of func(*http.Request) hapax.Option) Option {
	return func(begin *hapax.Request, r *http.Request) { of(r)(begin) }
}

// Serve answers one request as [Once] does, whatever its method. It is what adapters of frameworks
// are made of.
func Serve(door *hapax.Door, w http.ResponseWriter, r *http.Request, next http.HandlerFunc, options ...Option) {
	begin := &hapax.Request{As: "http", HTTP: &hapax.HTTPRequest{Method: hapax.Text(r.Method), Host: hapax.Text(r.Host),
		URI: hapax.Text(r.URL.RequestURI()), Headers: pairs(r.Header)}}
	for _, option := range options {
		option(begin, r)
	}
	if begin.Reconciles {
		unavailable(w, &hapax.Error{Answer: "invalid", Text: "hapax.Reconcile: HTTP has no such hook; use hapax.Hold"}, false)
		return
	}
	if len(r.Header.Values(keyHeader)) > 0 { // without a key the handler reads the body itself
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMax+1))
		if err != nil && len(body) <= bodyMax {
			http.Error(w, "the request's body cannot be read", http.StatusBadRequest)
			return
		}
		begin.Body = body
		r = r.WithContext(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	op, answer, err := door.Begin(r.Context(), begin)
	var made *recorder
	if op != nil {
		made = &recorder{to: w, header: http.Header{}}
		answer, err = run(op, made, r, next)
		if made.passed {
			return // there is nothing to add
		}
	}
	if err != nil {
		unavailable(w, err, op != nil)
		return
	}
	status, body := answer.Status, answer.Body
	if answer.Own {
		status, body = made.status, made.body.Bytes()
		made.setHeader()
	}
	for _, pair := range answer.Headers {
		w.Header().Add(string(pair[0]), string(pair[1]))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// run runs the handler into a recorder, and ends its attempt.
func run(op *hapax.Op, made *recorder, r *http.Request, next http.HandlerFunc) (*hapax.Answer, error) {
	ctx, cancel := op.Context(context.WithValue(detached{r.Context()}, opKey{}, op))
	defer cancel()
	returned := false
	defer func() {
		if !returned { // it panicked
			_, _, _ = op.End(hapax.End{Status: http.StatusInternalServerError})
		}
	}()
	next(made, r.WithContext(ctx))
	returned = true
	made.WriteHeader(http.StatusOK)
	end := hapax.End{Status: made.status, Headers: pairs(made.sent), Body: made.body.Bytes()}
	if made.failed != nil { // its client has a part of it, and nobody has the rest
		end = hapax.End{Class: "unknown"}
	} else if made.passed {
		end.Kept = new(bool)
	}
	_, answer, err := op.End(end)
	return answer, err
}

// unavailable answers where the door did not. Where the handler ran nothing says that it did not.
func unavailable(w http.ResponseWriter, err error, ran bool) {
	problem := Problem{Type: "about:blank", Title: "Not run", Status: http.StatusInternalServerError, Detail: err.Error()}
	if ran {
		problem = Problem{Type: "urn:hapax:problem:upstream-failed", Title: "The service gave no response",
			Status: http.StatusBadGateway, Detail: "The operation may have had its effect. Ask again with the same key."}
	} else if errors.Is(err, hapax.ErrStoreDown) {
		problem = Problem{Type: "urn:hapax:problem:store-unavailable", Title: "The operation cannot be protected now",
			Status: http.StatusServiceUnavailable, Detail: "Nothing was run for this request."}
	}
	if problem.Status != http.StatusInternalServerError {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(problem.Status)
	fmt.Fprintf(w, `{"type":%q,"title":%q,"status":%d,"detail":%q}`+"\n", problem.Type, problem.Title, problem.Status,
		problem.Detail)
}

// detached is a context with the values of another, which does not end.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

// recorder keeps a response in memory, and passes on one that is over bodyMax.
type recorder struct {
	to     http.ResponseWriter
	header http.Header
	sent   http.Header // as it was with the status
	status int
	body   bytes.Buffer
	passed bool  // what is written goes to the client
	failed error // why a part of it did not
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
		r.sent = r.header.Clone() // later changes do not count
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified { // as net/http
		return 0, http.ErrBodyNotAllowed
	}
	if !r.passed && r.body.Len()+len(p) <= bodyMax {
		return r.body.Write(p)
	}
	if !r.passed {
		r.passed = true
		r.setHeader()
		r.to.WriteHeader(r.status)
		_, r.failed = r.to.Write(r.body.Bytes())
		r.body = bytes.Buffer{}
	}
	if r.failed != nil {
		return 0, r.failed
	}
	n := 0
	n, r.failed = r.to.Write(p)
	return n, r.failed
}

// setHeader gives the client the handler's headers, but for those that are the door's.
func (r *recorder) setHeader() {
	for name, values := range r.sent {
		switch name {
		case "Idempotency-Replayed", "Idempotency-Recorded", "Idempotency-Protected", "Idempotency-Ttl":
		default:
			r.to.Header()[name] = values
		}
	}
}

func pairs(header http.Header) [][2]hapax.Text {
	out := [][2]hapax.Text{}
	for name, values := range header {
		for _, value := range values {
			out = append(out, [2]hapax.Text{hapax.Text(name), hapax.Text(value)})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i][0] < out[j][0] })
	return out
}
