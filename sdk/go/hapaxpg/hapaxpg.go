// SPDX-License-Identifier: Apache-2.0

// Package hapaxpg completes an operation in the PostgreSQL transaction that has its rows. The rows
// and the outcome are then committed together, or neither is.
//
// It needs no door. Something in front of the program claims the operation and hands on a token:
// hapax serve or hapax consume with --pass-token on, or a handler of package hapax under the policy
// pass_token.
//
//	func pay(w http.ResponseWriter, r *http.Request) {
//		tx, err := db.BeginTx(r.Context(), nil)
//		…                                             // your statements
//		attempt := hapaxhttp.AttemptOf(r.Header)
//		err = hapaxpg.Complete(r.Context(), tx.ExecContext, attempt.Token, 201, nil, receipt)
//		if err == nil {
//			err = tx.Commit()
//		}
//
// The functions take a method of the transaction and not the transaction, so that one function
// serves database/sql (tx.ExecContext, tx.QueryRowContext) and pgx (tx.Exec, tx.QueryRow), and this
// package imports no driver.
package hapaxpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sort"
)

// ErrLost says that the claim of this token is lost: another attempt has it, or has completed the
// operation. Or the token itself has completed the operation already, in another transaction.
var ErrLost = errors.New("hapaxpg: the claim is lost")

// Complete completes the operation of this token with an outcome, in the transaction that exec
// belongs to. The outcome is the answer to every repeat once the transaction has committed.
//
// exec is tx.ExecContext of database/sql, or tx.Exec of pgx. A status of 0 is none. Headers and body
// may be nil.
//
// ErrLost: the claim is another attempt's by now, or the transaction is a repeat, as after a lost
// reply to COMMIT. It cannot be committed: let it roll back. The gate answers with what was
// committed, whatever the handler says then. A token of "" is refused, since nothing was claimed then. Other errors are the driver's.
func Complete[R any](ctx context.Context, exec func(context.Context, string, ...any) (R, error),
	token string, status int, header http.Header, body []byte) error {
	return end(ctx, exec, "SELECT FROM hapax.complete($1, $2, $3, $4)", token, status, header, body)
}

// Fail ends the attempt of this token as failed: a retry runs. Roll your rows back to a savepoint
// first, otherwise they are committed with the failure. ran false says that surely nothing happened
// (the attempt does not count). Errors as those of Complete.
func Fail[R any](ctx context.Context, exec func(context.Context, string, ...any) (R, error),
	token string, ran bool, status int, header http.Header, body []byte) error {
	const ask = "SELECT FROM hapax.fail($1, status => $2, headers => $3, body => $4, ran => $5)"

	return end(ctx, exec, ask, token, status, header, body, ran)
}

func end[R any](ctx context.Context, exec func(context.Context, string, ...any) (R, error), ask,
	token string, status int, header http.Header, body []byte, more ...any) error {
	if token == "" {
		return errors.New("hapaxpg: there is no token: the request has no key, or --pass-token is off")
	}
	if body == nil {
		body = []byte{} // NULL would say that the body was not kept
	}
	_, err := exec(ctx, ask, append([]any{token, status, lines(header), body}, more...)...)
	if State(err) == "HX001" {
		return fmt.Errorf("%w: %v", ErrLost, err)
	}
	return err
}

// lines returns headers in the form of an outcome, sorted by name.
func lines(header http.Header) []byte {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	sort.Strings(names)
	out := bytes.Buffer{}
	for _, name := range names {
		for _, value := range header[name] {
			fmt.Fprintf(&out, "%s: %s\r\n", name, value)
		}
	}
	return out.Bytes()
}

// State returns the SQLSTATE of a driver's error, "" where it has none. 40001 and 40P01 ask for the
// transaction to be run again, with the same key.
func State(err error) string {
	var stated interface{ SQLState() string }

	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}
