// SPDX-License-Identifier: Apache-2.0

// Example is a payments API that charges once for each Idempotency-Key, and refunds once for each
// payment.
//
//	hapax door --store memory: -- go run ./example 127.0.0.1:9000
//	curl -i localhost:9000/payments -H 'Idempotency-Key: order-1' -d '{"amount": 1999}'   # twice
//	curl -i -X POST localhost:9000/refunds/order-1                                        # twice
//	curl localhost:9000/effects
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"hapax.example/hapax"
	"hapax.example/hapax/hapaxhttp"
)

// effects stand for what another service does: a list of the keys that it was called with.
var effects struct {
	sync.Mutex
	list []string
}

func effect(what string) string {
	effects.Lock()
	defer effects.Unlock()
	effects.list = append(effects.list, what)
	return fmt.Sprintf("%s (effect %d)", what, len(effects.list))
}

func pay(w http.ResponseWriter, r *http.Request) {
	var order struct{ Amount int }
	if json.NewDecoder(r.Body).Decode(&order) != nil || order.Amount <= 0 {
		http.Error(w, "an amount above 0 is needed", http.StatusBadRequest) // kept, too
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, effect("charge "+hapaxhttp.OpOf(r.Context()).Key()))
}

// refund has two effects. A retry does not repeat the one that is done.
func refund(ctx context.Context, door *hapax.Door, payment string) ([]string, error) {
	return hapax.Do(ctx, door, hapax.Key("refunds", payment),
		func(ctx context.Context, op *hapax.Op) (done []string, err error) {
			for _, name := range []string{"refund", "mail"} {
				said, err := hapax.Step(ctx, op, name, func(_ context.Context, s *hapax.Op) (string, error) {
					return effect(name + " " + s.Key()), nil
				})
				if err != nil {
					return nil, err
				}
				done = append(done, said)
			}
			return done, nil
		}, hapax.Fingerprint(payment), hapax.What("refund"))
}

func main() {
	door, err := hapax.Dial(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	defer door.Close()
	mux := http.NewServeMux()
	mux.Handle("/payments", hapaxhttp.Once(door, hapaxhttp.Scope("payments"),
		hapaxhttp.With(hapax.Hold, hapax.Policy("key", "required")))(http.HandlerFunc(pay)))
	mux.HandleFunc("/refunds/", func(w http.ResponseWriter, r *http.Request) {
		done, err := refund(r.Context(), door, strings.TrimPrefix(r.URL.Path, "/refunds/"))
		var told *hapax.Error
		if errors.As(err, &told) && told.Seconds() != "" {
			w.Header().Set("Retry-After", told.Seconds())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(done)
	})
	mux.HandleFunc("/effects", func(w http.ResponseWriter, _ *http.Request) {
		effects.Lock()
		defer effects.Unlock()
		_ = json.NewEncoder(w).Encode(effects.list)
	})
	listener, err := net.Listen("tcp", append(os.Args, "127.0.0.1:9000")[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("payments: http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, mux))
}
