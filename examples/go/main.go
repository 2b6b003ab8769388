// SPDX-License-Identifier: Apache-2.0

// Orders in Go: shop ADDRESS CONNINFO. The order's row, the message about it and the answer to the
// client are one transaction. docs/recipes/go.md says how to run it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"hapax.example/hapax/hapaxhttp"
	"hapax.example/hapax/hapaxpg"
)

type order struct {
	ID   string `json:"id"`
	Item string `json:"item"`
}

type shop struct{ conninfo string }

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	answer, err := s.take(r.Context(), o, hapaxhttp.AttemptOf(r.Header).Token)
	if err != nil { // nothing was committed, or the gate finds in the record what was
		log.Print(err)
		http.Error(w, "not taken", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer)
}

// A connection for each order keeps this short: a service has a pool.
func (s shop) take(ctx context.Context, o order, token string) ([]byte, error) {
	conn, err := pgx.Connect(ctx, s.conninfo)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }() // rolls back what was not committed
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", o.ID, o.Item); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "SELECT hapax.publish('mails', $1, $1, 'mail', $2)", o.ID, []byte(o.Item))
	if err != nil {
		return nil, err
	}
	answer := []byte(fmt.Sprintf("order %s is taken\n", o.ID))
	if err = hapaxpg.Complete(ctx, tx.Exec, token, http.StatusCreated, nil, answer); err != nil {
		return nil, err
	}
	return answer, tx.Commit(ctx)
}

func main() {
	http.Handle("/orders", shop{os.Args[2]})
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
