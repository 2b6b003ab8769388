// SPDX-License-Identifier: Apache-2.0

package hapaxpg

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"reflect"
	"testing"
)

// That database/sql fits is checked by the compiler; tests/sdk runs it on a PostgreSQL, and pgx.
var _ = func(tx *sql.Tx) error { return Complete(context.Background(), tx.ExecContext, "t", 200, nil, nil) }

type lostError struct{}

func (lostError) Error() string    { return "lost" }
func (lostError) SQLState() string { return "HX001" }

// What goes to SQL: headers as lines, and a body that is never NULL.
func TestWhatIsAsked(t *testing.T) {
	var asked []any
	var fails error
	exec := func(_ context.Context, query string, values ...any) (int, error) {
		asked = append([]any{query}, values...)
		return 0, fails
	}
	ctx := context.Background()
	if err := Complete(ctx, exec, "t", 201, http.Header{"B": {"2"}, "A": {"1", "3"}}, nil); err != nil {
		t.Error(err)
	}
	want := []any{"SELECT FROM hapax.complete($1, $2, $3, $4)", "t", 201, []byte("A: 1\r\nA: 3\r\nB: 2\r\n"), []byte{}}
	if !reflect.DeepEqual(asked, want) {
		t.Errorf("%q", asked)
	}
	if err := Fail(ctx, exec, "t", false, 500, nil, []byte("b")); err != nil || asked[5] != false {
		t.Errorf("%q %v", asked, err)
	}
	fails = lostError{}
	if err := Complete(ctx, exec, "t", 201, nil, nil); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	fails = errors.New("the connection is lost")
	if err := Complete(ctx, exec, "t", 201, nil, nil); err != fails || State(err) != "" {
		t.Error(err)
	}
	asked = nil
	if err := Complete(ctx, exec, "", 201, nil, nil); err == nil || asked != nil {
		t.Error("without a token something is asked")
	}
}
