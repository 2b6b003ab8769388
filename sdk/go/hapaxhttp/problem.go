// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"hapax.example/hapax"
)

const problemMax = 64 << 10 // bytes of a page that are read

// Problem is a refusal by a gate or by [Once]: a page of application/problem+json (RFC 9457).
// errors.Is(err, hapax.ErrInFlight) and the others tell which one it is.
type Problem struct {
	Type           string        `json:"type"` // urn:hapax:problem:in-flight
	Title          string        `json:"title"`
	Status         int           `json:"status"`
	Detail         string        `json:"detail"`
	Instance       string        `json:"instance"`        // the operation, for its operators; may be ""
	OriginalStatus int           `json:"original_status"` // response-not-kept: what the response had
	Since          time.Time     `json:"since"`           // in-flight: when that attempt last gave a sign of life
	RetryAfter     time.Duration `json:"-"`               // negative: the response does not say
	Code           string        `json:"-"`               // in-flight: the last word of Type
}

var answers = map[string]error{
	"in-flight": hapax.ErrInFlight, "unknown-outcome": hapax.ErrUnknown,
	"fingerprint-mismatch": hapax.ErrMismatch, "caller-mismatch": hapax.ErrMismatch,
	"attempts-used-up": hapax.ErrFailed, "response-not-kept": hapax.ErrGone,
	"expired-key": hapax.ErrExpired, "store-unavailable": hapax.ErrStoreDown, "missing-key": hapax.ErrMissingKey,
	"bad-key": hapax.ErrBadKey, "missing-owner": hapax.ErrMissingOwner,
	"request-too-large": hapax.ErrTooLarge, "limit-reached": hapax.ErrLimited,
}

func (p *Problem) Error() string { return "hapax: " + p.Code + ": " + p.Title + ". " + p.Detail }

// Is reports whether target is the Err constant of package hapax for this problem.
func (p *Problem) Is(target error) bool { return answers[p.Code] == target && target != nil }

// ProblemOf returns the problem that a response is, and nil where it is none. The response's body
// can still be read.
func ProblemOf(response *http.Response) *Problem {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if kind != "application/problem+json" || response.StatusCode < 400 {
		return nil
	}
	page, err := io.ReadAll(io.LimitReader(response.Body, problemMax))
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(page), response.Body), response.Body}
	problem := Problem{RetryAfter: -1}
	if err != nil || json.Unmarshal(page, &problem) != nil {
		return nil
	}
	problem.Code = problem.Type[strings.LastIndexAny(problem.Type, ":/")+1:]
	if after, ok := retryAfter(response.Header); ok {
		problem.RetryAfter = after
	}
	return &problem
}

// retryAfter reads the header Retry-After: seconds, or a date.
func retryAfter(header http.Header) (time.Duration, bool) {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if after := time.Until(date); after > 0 {
		return after, true
	}
	return 0, true
}
