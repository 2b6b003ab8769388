// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"fmt"
	"time"
)

// answerError is an answer of Hapax that gives no result, by its name.
type answerError string

func (e answerError) Error() string { return "hapax: " + string(e) }

// What errors.Is finds in an [Error], and in a problem of a gate (package hapaxhttp).
// In all of them the handler did not run, or ran and lost its claim to another attempt.
const (
	ErrInFlight     = answerError("in_flight")     // another attempt runs: ask again, with the same key
	ErrUnknown      = answerError("unknown")       // an earlier attempt's result is not known
	ErrMismatch     = answerError("mismatch")      // the key was used for another request, or by another caller
	ErrFailed       = answerError("failed")        // all attempts that the operation may have were used up
	ErrGone         = answerError("gone")          // it took effect, and its result was not kept
	ErrExpired      = answerError("expired")       // the key's time is over: policies tombstone, key_expires
	ErrStoreDown    = answerError("store_down")    // the store, or the door, cannot be reached, ends, or has no room
	ErrMissingKey   = answerError("missing_key")   // the operation needs a key
	ErrBadKey       = answerError("bad_key")       // the key is malformed, or too short
	ErrMissingOwner = answerError("missing_owner") // nobody can tell whose key it is
	ErrTooLarge     = answerError("too_large")     // the request is over its limit
	ErrLimited      = answerError("limited")       // the owner of the key is over a limit

	// ErrIndeterminate is no answer: the door is gone, does not know the attempt any more, or had no room
	// for its END. The handler ran, and whether its outcome is stored is not known. Ask again, with the
	// same key.
	ErrIndeterminate = answerError("indeterminate")
)

// Error is an answer that gives no result, or what the door says of a request that it refuses.
type Error struct {
	Answer     string        // "in_flight": the answer; or the error, "invalid"
	Differs    string        // mismatch: "fingerprint" or "caller"
	RetryAfter time.Duration // when to ask again; negative: time does not help
	Attempt    uint32        // of the record, where one was seen
	Fence      uint64        // of that attempt
	Text       string        // what failed, and why
}

func (e *Error) Error() string {
	text := "hapax: " + e.Answer
	if e.Differs != "" {
		text += ": another " + e.Differs
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Is reports whether target is the answer's own Err constant.
func (e *Error) Is(target error) bool { return target == answerError(e.Answer) }

// Seconds returns RetryAfter as the value of the header Retry-After, rounded up; "" where time
// does not help.
func (e *Error) Seconds() string {
	if e.RetryAfter < 0 {
		return ""
	}
	return fmt.Sprint(int64((e.RetryAfter + time.Second - 1) / time.Second))
}
