// Completes an operation in a transaction, by pgx and by database/sql: pg pgx|sql DSN TOKEN (tests/sdk/test_go.py).
// Prints "committed", or the error.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"hapax.example/hapax/hapaxpg"
)

var (
	ctx    = context.Background()
	header = http.Header{"Location": {"/payments/1"}}
	body   = []byte("\x00\xff receipt")
)

const insert = "INSERT INTO payments (amount) VALUES (1)"

func byPgx(dsn, token string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insert); err != nil {
			return err
		}
		return hapaxpg.Complete(ctx, tx.Exec, token, 201, header, body)
	})
}

func bySQL(dsn, token string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, insert); err != nil {
		return err
	}
	if err := hapaxpg.Complete(ctx, tx.ExecContext, token, 201, header, body); err != nil {
		return err
	}
	return tx.Commit()
}

func main() {
	by := map[string]func(string, string) error{"pgx": byPgx, "sql": bySQL}[os.Args[1]]
	if err := by(os.Args[2], os.Args[3]); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("committed")
}
