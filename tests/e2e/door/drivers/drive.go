// Runs the page's snippet for pgx: drive DSN (test_drivers.py).
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	ctx  = context.Background()
	held *pgx.Conn
)

type payment func(context.Context, *pgx.Conn, string, int) (string, []byte, error)

func shown(verdict string, body []byte, err error) string {
	var e *pgconn.PgError
	if err == nil {
		return fmt.Sprintf("ok %s %s", verdict, body)
	}
	state := "-"
	if errors.As(err, &e) {
		state = e.Code
	}
	return strings.ReplaceAll(fmt.Sprintf("error %s %v", state, err), "\n", " ")
}

func once(pay payment, key string, amount int) string {
	conn, err := pgx.Connect(ctx, os.Args[1])
	if err != nil {
		return shown("", nil, err)
	}
	defer conn.Close(ctx)
	return shown(pay(ctx, conn, key, amount))
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "pay":
			if held == nil {
				held, _ = pgx.Connect(ctx, os.Args[1])
			}
			amount, _ := strconv.Atoi(words[2])
			answer := shown(pay(ctx, held, words[1], amount))
			if strings.HasPrefix(answer, "error") {
				held.Close(ctx)
				held = nil
			}
			fmt.Println(answer)
		case "storm":
			n, _ := strconv.Atoi(words[1])
			amount, _ := strconv.Atoi(words[3])
			answers := make(chan string)
			for i := 0; i < n; i++ {
				go func() { answers <- once(payAgain, words[2], amount) }()
			}
			for i := 0; i < n; i++ {
				fmt.Println(<-answers)
			}
		default:
			fmt.Println(once(func(ctx context.Context, conn *pgx.Conn, token string, _ int) (string, []byte, error) {
				_, err := conn.Exec(ctx, "SELECT FROM hapax.complete($1, 201)", token)
				return "", nil, err
			}, words[1], 0))
		}
	}
}
