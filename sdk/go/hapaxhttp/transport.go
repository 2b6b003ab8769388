// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/http"
	"time"
)

const retryAfterMax = time.Minute // a longer Retry-After is left to the caller

// Transport is an http.RoundTripper for clients of an API that knows Idempotency-Key: one key per
// call, and the same key on each retry.
//
//	client := &http.Client{Transport: &hapaxhttp.Transport{}, Timeout: time.Minute}
//
// A POST or PATCH without the header gets a new random key; a request of any method that has the
// header keeps it ([SetKey]). All other requests pass as they are, once.
//
// A call is tried again after an error of the connection, and after 408, 425, 429, 500, 502, 503,
// 504, and a 409 with Retry-After ("in flight"). Between tries it waits: for Pause, twice as long
// each time, half of it at random; at least for Retry-After, and never past the context's deadline.
// The last try's response or error is the call's. A request whose body cannot be read twice (GetBody
// is nil) is sent once.
type Transport struct {
	Base     http.RoundTripper          // nil: http.DefaultTransport
	Tries    int                        // at most; 0: 4
	Pause    time.Duration              // before the second try; 0: 0.5 s
	PauseMax time.Duration              // 0: 10 s
	NewKey   func(*http.Request) string // "": this request gets no key; nil: 128 random bits for POST and PATCH
}

// RoundTrip sends a request, with its retries.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, newKey := t.Base, t.NewKey
	if base == nil {
		base = http.DefaultTransport
	}
	if newKey == nil {
		newKey = randomKey
	}
	key := ""
	if len(r.Header[keyHeader]) == 0 {
		if key = newKey(r); key == "" {
			return base.RoundTrip(r)
		}
	}
	tries, pause, most := or(t.Tries, 4), or(t.Pause, time.Second/2), or(t.PauseMax, 10*time.Second)
	for try := 1; ; try++ {
		sent := r.Clone(r.Context())
		if key != "" {
			SetKey(sent.Header, key)
		}
		if try > 1 && r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			sent.Body = body
		}
		response, err := base.RoundTrip(sent)
		again := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
		wait, retry := after(response, pause)
		if !retry || !again || try >= tries || !within(r.Context(), wait) {
			return response, err
		}
		if response != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, problemMax)) // so that the connection is used again
			response.Body.Close()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, r.Context().Err()
		}
		if pause *= 2; pause > most {
			pause = most
		}
	}
}

func or[T int | time.Duration](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

// after says whether to try again after this response (nil: none came), and how long to wait.
func after(response *http.Response, pause time.Duration) (time.Duration, bool) {
	var random [8]byte
	_, _ = rand.Read(random[:])
	wait := pause/2 + time.Duration(binary.BigEndian.Uint64(random[:])%uint64(pause/2+1))
	if response == nil {
		return wait, true
	}
	told, says := retryAfter(response.Header)
	switch response.StatusCode {
	case 409:
		if !says {
			return 0, false
		}
	case 408, 425, 429, 500, 502, 503, 504:
	default:
		return 0, false
	}
	return told + wait, told <= retryAfterMax // the jitter on top, or all would come back at once
}

// within reports whether a wait ends before the context does.
func within(ctx context.Context, wait time.Duration) bool {
	deadline, has := ctx.Deadline()
	return ctx.Err() == nil && (!has || time.Until(deadline) > wait)
}

func randomKey(r *http.Request) string {
	if r.Method != http.MethodPost && r.Method != http.MethodPatch {
		return ""
	}
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		return ""
	}
	return hex.EncodeToString(key[:])
}
