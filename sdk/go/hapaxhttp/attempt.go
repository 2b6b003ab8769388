// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const keyHeader = "Idempotency-Key"

// Attempt is what hapax serve or hapax consume tells the handler behind it.
type Attempt struct {
	Key    string // the operation's key; "" where the request has none
	Number uint32 // counted from 1; 0 where nothing was claimed
	Fence  uint64 // what you write to should refuse a smaller one; 0 where nothing was claimed
	Token  string // for package hapaxpg, with --pass-token on; a secret, not for logs
}

// AttemptOf reads the headers of a request that came through a gate or a consumer. Only behind one
// of them are they to be believed: both remove what a client sends under these names.
func AttemptOf(header http.Header) Attempt {
	number, _ := strconv.ParseUint(header.Get("Idempotency-Attempt"), 10, 32)
	fence, _ := strconv.ParseUint(header.Get("Idempotency-Fence"), 10, 64)
	return Attempt{keyOf(header), uint32(number), fence, header.Get("Idempotency-Token")}
}

// keyOf returns the key's bytes. A consumer sends them percent-encoded; a gate sends the header as it
// came, a string in quotes or a bare word, after it was checked.
func keyOf(header http.Header) string {
	if key, err := url.PathUnescape(header.Get("Hapax-Key")); err == nil && key != "" {
		return key
	}
	value := strings.Trim(header.Get(keyHeader), " \t")
	if !strings.HasPrefix(value, `"`) {
		return value
	}
	key := strings.Builder{}
	for i := 1; i < len(value) && value[i] != '"'; i++ {
		if value[i] == '\\' && i+1 < len(value) {
			i++
		}
		key.WriteByte(value[i])
	}
	return key.String()
}

// SetKey sets the header Idempotency-Key of a request to another service, in quotes. Within a
// handler, key is op.Key() or the key of a step. A key with bytes that are not printable ASCII is
// sent as "sha256-" and its hash, as a consumer does.
func SetKey(header http.Header, key string) {
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			key = fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(key)))
			break
		}
	}
	header.Set(keyHeader, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)+`"`)
}

const (
	keyMax  = 255 // bytes of a key
	stepMax = 64  // bytes of a step's name
)

// StepKey returns the key to hand to the next service for one step of this operation: KEY:step.
// Where that is over 255 bytes it is "sha256-" and the hash of that text. It is the same text in
// every attempt, and in every language. The step has 1 to 64 bytes and no ':'.
func (a Attempt) StepKey(step string) (string, error) {
	derived := a.Key + ":" + step
	switch {
	case a.Key == "" || len(a.Key) > keyMax:
		return "", fmt.Errorf("hapax: a key of %d bytes is not of 1 to %d", len(a.Key), keyMax)
	case step == "" || len(step) > stepMax || strings.Contains(step, ":"):
		return "", fmt.Errorf("hapax: step %q is not of 1 to %d bytes, or holds a ':'", step, stepMax)
	case len(derived) > keyMax:
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(derived))), nil
	}
	return derived, nil
}

// ErrStale says that a fence is older than one that was seen before: the attempt lost its claim.
var ErrStale = errors.New("hapax: the fence is older than one that was seen")

// CheckFence is for what a handler writes to: it keeps the highest fence that it has seen, and
// refuses a smaller one with ErrStale. In SQL: UPDATE … WHERE fence <= $1.
func (a Attempt) CheckFence(seen uint64) error {
	if a.Fence < seen {
		return fmt.Errorf("%w: %d, and %d was seen", ErrStale, a.Fence, seen)
	}
	return nil
}
