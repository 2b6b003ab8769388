// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"hapax.example/hapax"
)

// A service answers with the next of its handlers, and notes keys and bodies.
type service struct {
	mu     sync.Mutex
	plan   []http.HandlerFunc
	keys   []string
	bodies []string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	s.bodies = append(s.bodies, string(body))
	next := s.plan[0]
	if len(s.plan) > 1 {
		s.plan = s.plan[1:]
	}
	s.mu.Unlock()
	next(w, r)
}

func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
	}
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func serve(t *testing.T, plan ...http.HandlerFunc) (*service, string, *http.Client) {
	t.Helper()
	s := &service{plan: plan}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL, &http.Client{Transport: &Transport{Pause: time.Millisecond}}
}

// One key per call, the same on each retry, and the whole body each time.
func TestRetriesKeepTheirKey(t *testing.T) {
	s, url, client := serve(t, hangUp, status(503), status(409, "Retry-After", "0"), status(201))
	for range [2]int{} {
		response, err := client.Post(url, "text/plain", strings.NewReader("pay"))
		if err != nil || response.StatusCode != 201 {
			t.Fatal(response, err)
		}
		response.Body.Close()
	}
	if len(s.keys) != 5 {
		t.Fatal(s.keys)
	}
	for i, key := range s.keys {
		if s.bodies[i] != "pay" || len(key) != 34 || (key == s.keys[0]) != (i < 4) {
			t.Errorf("try %d: %q %q", i, key, s.bodies[i])
		}
	}
}

// What is no passing failure is returned at once; so is the last try's.
func TestWhatIsNotTriedAgain(t *testing.T) {
	for code, tries := range map[int]int{200: 1, 400: 1, 409: 1, 422: 1, 501: 1, 500: 4, 429: 4} {
		s, url, client := serve(t, status(code))
		response, err := client.Post(url, "text/plain", strings.NewReader("pay"))
		if err != nil || response.StatusCode != code || len(s.keys) != tries {
			t.Error(code, response, err, s.keys)
		}
	}
	s, url, client := serve(t, status(503, "Retry-After", "61"))
	if response, err := client.Post(url, "", nil); err != nil || response.StatusCode != 503 || len(s.keys) != 1 {
		t.Error(response, err, s.keys)
	}
	s, url, client = serve(t, status(503))
	if _, err := client.Post(url, "", io.MultiReader(strings.NewReader("once"))); err != nil || len(s.keys) != 1 {
		t.Error("a body that cannot be read twice was sent ", len(s.keys), " times ", err)
	}
	if _, err := client.Get(url); err != nil || s.keys[1] != "" || len(s.keys) != 2 {
		t.Error("a GET: ", s.keys, err)
	}
	request, _ := http.NewRequest("DELETE", url, nil)
	SetKey(request.Header, `a"b\`)
	if _, err := client.Do(request); err != nil || len(s.keys) != 6 || s.keys[5] != `"a\"b\\"` {
		t.Error("a key of the caller's: ", s.keys, err)
	}
}

// Retry-After is waited for, and the context's deadline is not passed.
func TestWaits(t *testing.T) {
	s, url, client := serve(t, status(503, "Retry-After", "1"), status(200))
	began := time.Now()
	if _, err := client.Post(url, "", nil); err != nil || time.Since(began) < time.Second || len(s.keys) != 2 {
		t.Error(err, time.Since(began), s.keys)
	}
	s, url, client = serve(t, status(503, "Retry-After", time.Now().Add(30*time.Second).UTC().Format(http.TimeFormat)))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, "POST", url, nil)
	if response, err := client.Do(request); err != nil || response.StatusCode != 503 || len(s.keys) != 1 {
		t.Error(response, err, s.keys)
	}
	if pause, again := after(nil, time.Second); !again || pause < time.Second/2 || pause > time.Second {
		t.Error(pause, again)
	}
}

// A problem of a gate is an error, and its page can still be read.
func TestProblems(t *testing.T) {
	const page = `{"type":"urn:hapax:problem:in-flight","title":"T","status":409,"detail":"D","since":"2026-11-23T07:00:00Z"}`
	response := &http.Response{StatusCode: 409, Header: http.Header{"Content-Type": {"application/problem+json"},
		"Retry-After": {"3"}}, Body: io.NopCloser(strings.NewReader(page))}
	problem := ProblemOf(response)
	if problem == nil || problem.Code != "in-flight" || problem.RetryAfter != 3*time.Second || problem.Since.IsZero() ||
		!errors.Is(problem, hapax.ErrInFlight) || errors.Is(problem, hapax.ErrUnknown) || problem.Error() != "hapax: in-flight: T. D" {
		t.Errorf("%#v", problem)
	}
	if left, err := io.ReadAll(response.Body); string(left) != page || err != nil {
		t.Error(string(left), err)
	}
	for code, is := range answers {
		if !errors.Is(&Problem{Code: code}, is) {
			t.Error(code)
		}
	}
	response.Header.Set("Content-Type", "application/json")
	if ProblemOf(response) != nil || errors.Is(&Problem{Code: "else"}, nil) {
		t.Error("a page of somebody else is a problem")
	}
}

// What a gate and a consumer hand on is read, quoted or not.
func TestAttempts(t *testing.T) {
	header := http.Header{}
	header.Set("Idempotency-Attempt", "2")
	header.Set("Idempotency-Fence", "18446744073709551615")
	header.Set("Idempotency-Token", "secret")
	for sent, key := range map[string]string{`k-1`: "k-1", `"k 1"`: "k 1", `"a\"b\\";p=1`: `a"b\`, ` "" `: ""} {
		header.Set("Idempotency-Key", sent)
		if a := AttemptOf(header); a != (Attempt{key, 2, 1<<64 - 1, "secret"}) {
			t.Errorf("%s: %#v", sent, a)
		}
	}
	header.Set("Hapax-Key", "a%20%ff%22")
	a := AttemptOf(header)
	if a.Key != "a \xff\"" {
		t.Errorf("%q", a.Key)
	}
	if AttemptOf(http.Header{}) != (Attempt{}) {
		t.Error("an attempt of nothing")
	}
	SetKey(header, "a\xff")
	if sent := header.Get("Idempotency-Key"); sent != `"sha256-8dd06b5ab6b594257e41b7d8dd440a4062eddc67fdab5c13b4dc300176896f6e"` {
		t.Error(sent)
	}
	if a.CheckFence(1<<64-1) != nil || !errors.Is((Attempt{Fence: 1}).CheckFence(2), ErrStale) {
		t.Error("fences")
	}
}

// Keys of steps are those of C and SQL (hapax_key_derive()).
func TestStepKeys(t *testing.T) {
	a := Attempt{Key: "order-17"}
	if key, err := a.StepKey("debit"); key != "order-17:debit" || err != nil {
		t.Error(key, err)
	}
	long := Attempt{Key: strings.Repeat("k", 250)}
	if key, err := long.StepKey("abcd"); len(key) != 255 || err != nil {
		t.Error(key, err)
	}
	if key, err := long.StepKey("abcde"); !strings.HasPrefix(key, "sha256-") || len(key) != 71 || err != nil {
		t.Error(key, err)
	}
	other := AttemptOf(http.Header{"Hapax-Key": {"%00%81"}})
	if key, err := other.StepKey("debit"); key != "\x00\x81:debit" || err != nil {
		t.Errorf("%q, %v", key, err)
	}
	for _, step := range []string{"", "a:b", strings.Repeat("s", 65)} {
		if _, err := a.StepKey(step); err == nil {
			t.Error(step)
		}
	}
	if _, err := (Attempt{}).StepKey("debit"); err == nil {
		t.Error("a step of no key")
	}
}

// What a handler writes is kept: status, headers as they were then, body. Over its limit all of it is passed on.
func TestRecorder(t *testing.T) {
	to := httptest.NewRecorder()
	r := &recorder{to: to, header: http.Header{}}
	r.Header().Set("Idempotency-Replayed", "mine")
	r.Header().Set("A", "1")
	r.WriteHeader(100)
	r.WriteHeader(202)
	r.Header().Set("A", "2")
	r.WriteHeader(500)
	_, _ = r.Write([]byte("x"))
	if r.status != 202 || r.sent.Get("A") != "1" || r.body.String() != "x" || to.Body.Len() != 0 {
		t.Error(r.status, r.sent, r.body.Len(), to.Body.Len())
	}
	for _, part := range []int{bodyMax, 7} {
		if n, err := r.Write(bytes.Repeat([]byte("x"), part)); n != part || err != nil {
			t.Error(n, err)
		}
	}
	if !r.passed || to.Code != 202 || len(to.Header()) != 1 || to.Header().Get("A") != "1" || to.Body.Len() != bodyMax+8 {
		t.Error(r.passed, to.Code, to.Header(), to.Body.Len())
	}
}

// A response that has no body keeps none.
func TestRecorderWithoutBody(t *testing.T) {
	for _, status := range []int{http.StatusNoContent, http.StatusNotModified} {
		r := &recorder{to: httptest.NewRecorder(), header: http.Header{}}
		r.WriteHeader(status)
		if n, err := r.Write([]byte("x")); n != 0 || !errors.Is(err, http.ErrBodyNotAllowed) || r.body.Len() != 0 {
			t.Error(status, n, err, r.body.Len())
		}
	}
}
