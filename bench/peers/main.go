// A service with one way to run each Idempotency-Key once: peer WAY, $PORT, $STORE or $HAPAX_DOOR, and $EFFECTS. Prints its port.
// bench/peers.py starts it; app.cjs says what the paths do.
//
// The ways "redis" and "postgres" are the middlewares that one writes oneself: SET NX and SET, INSERT … ON CONFLICT and
// UPDATE, with the request's context, as is usual.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"hapax.example/hapax"
	"hapax.example/hapax/hapaxhttp"
)

const day = 24 * time.Hour

var (
	effects = os.Getenv("EFFECTS")
	count   atomic.Int64
	fill    = strings.Repeat("x", 170)
)

// result is what the handler gives: it is written and kept.
func result(path, key string) []byte {
	receipt := fmt.Sprintf("%d-%d", os.Getpid(), count.Add(1))
	if path != "/pay" {
		file, err := os.OpenFile(effects+"/effects", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(file, key)
		file.Close()
		if path == "/slow" {
			time.Sleep(20 * time.Millisecond)
		} else {
			for _, err := os.Stat(effects + "/" + path[6:]); err != nil; _, err = os.Stat(effects + "/" + path[6:]) {
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
	body, _ := json.Marshal(map[string]string{"receipt": receipt, "fill": fill})
	return body
}

func give(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func pay(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	give(w, 201, result(r.URL.Path, r.Header.Get("Idempotency-Key")))
}

// recorder keeps what a handler writes.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int)         { r.status = status }
func (r *recorder) Write(body []byte) (int, error) { return r.body.Write(body) }

// record is what the ways of one's own keep.
type record struct {
	Print  string
	Status int // 0: it runs
	Body   []byte
}

// table is where records are: begin() gives the one that is there, or nil if there was none and now is one.
type table interface {
	begin(ctx context.Context, key string, started record) (*record, error)
	complete(ctx context.Context, key string, done record) error
}

func once(t table, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		sum := sha256.Sum256(body)
		mine := record{Print: fmt.Sprintf("%x", sum)}
		found, err := t.begin(r.Context(), key, mine)
		switch {
		case err != nil:
			give(w, 503, []byte(`{"error":"the store"}`))
		case found == nil:
			made := &recorder{ResponseWriter: w}
			next(made, r)
			mine.Status, mine.Body = made.status, made.body.Bytes()
			if err := t.complete(r.Context(), key, mine); err != nil {
				log.Print(err)
			}
			give(w, mine.Status, mine.Body)
		case found.Print != mine.Print:
			give(w, 422, []byte(`{"error":"another request's key"}`))
		case found.Status == 0:
			give(w, 409, []byte(`{"error":"in flight"}`))
		default:
			w.Header().Set("Idempotency-Replayed", "true")
			give(w, found.Status, found.Body)
		}
	}
}

type inRedis struct{ *redis.Client }

func (t inRedis) begin(ctx context.Context, key string, started record) (*record, error) {
	text, _ := json.Marshal(started)
	mine, err := t.SetNX(ctx, "idempotency:"+key, text, day).Result()
	if err != nil || mine {
		return nil, err
	}
	text, err = t.Get(ctx, "idempotency:"+key).Bytes()
	if err != nil {
		return nil, err
	}
	found := &record{}
	return found, json.Unmarshal(text, found)
}

func (t inRedis) complete(ctx context.Context, key string, done record) error {
	text, _ := json.Marshal(done)
	return t.Set(ctx, "idempotency:"+key, text, day).Err()
}

type inPostgres struct{ *pgxpool.Pool }

func (t inPostgres) begin(ctx context.Context, key string, started record) (*record, error) {
	done, err := t.Exec(ctx, "INSERT INTO idempotency (key, print) VALUES ($1, $2) ON CONFLICT DO NOTHING", key, started.Print)
	if err != nil || done.RowsAffected() == 1 {
		return nil, err
	}
	found := &record{}
	err = t.QueryRow(ctx, "SELECT print, coalesce(status, 0), body FROM idempotency WHERE key = $1", key).
		Scan(&found.Print, &found.Status, &found.Body)
	return found, err
}

func (t inPostgres) complete(ctx context.Context, key string, done record) error {
	_, err := t.Exec(ctx, "UPDATE idempotency SET status = $2, body = $3 WHERE key = $1", key, done.Status, done.Body)
	return err
}

func pool() *pgxpool.Pool {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("STORE"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 64
	opened, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	_, err = opened.Exec(ctx, `CREATE TABLE IF NOT EXISTS idempotency (key text PRIMARY KEY, print text NOT NULL,
		status integer, body bytea, created timestamptz NOT NULL DEFAULT now())`)
	if err != nil {
		log.Fatal(err)
	}
	return opened
}

// bySQL claims and completes in one transaction, which would also have the handler's rows.
func bySQL(p *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		said, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var verdict, token string
		var status int
		var body []byte
		ctx := context.Background()
		err = pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `SELECT verdict, coalesce(token, ''), coalesce(status, 0), body
				FROM hapax.begin('pay', $1, fingerprint => hapax.digest($2), wait => false)`, key, said).
				Scan(&verdict, &token, &status, &body)
			if err != nil || verdict != "claimed" {
				return err
			}
			status, body = 201, result(r.URL.Path, key)
			_, err = tx.Exec(ctx, "SELECT FROM hapax.complete($1, 201, body => $2)", token, body)
			return err
		})
		switch {
		case err != nil:
			log.Print(err)
			give(w, 503, []byte(`{"error":"the store"}`))
		case verdict == "claimed" || verdict == "completed":
			give(w, status, body)
		default:
			give(w, 409, []byte(`{"error":"`+verdict+`"}`))
		}
	}
}

func handler(way string) (http.Handler, error) {
	switch way {
	case "bare":
		return http.HandlerFunc(pay), nil
	case "redis":
		options, err := redis.ParseURL(os.Getenv("STORE"))
		if err != nil {
			return nil, err
		}
		options.PoolSize = 64
		return once(inRedis{redis.NewClient(options)}, pay), nil
	case "postgres":
		return once(inPostgres{pool()}, pay), nil
	case "sql":
		return bySQL(pool()), nil
	case "hapax":
		door, err := hapax.Dial(context.Background(), "")
		if err != nil {
			return nil, err
		}
		return hapaxhttp.Once(door)(http.HandlerFunc(pay)), nil
	}
	return nil, errors.New("no such way: " + way)
}

func main() {
	serve, err := handler(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, serve))
}
