// SPDX-License-Identifier: Apache-2.0

package hapaxhttp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"hapax.example/hapax"
)

// dying plays a door that answers one BEGIN with a frame of this kind, and is gone once what is returned is called.
func dying(t *testing.T, kind byte, meta string) (door *hapax.Door, die func()) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		for _, says := range []struct {
			kind, op byte
			meta     string
		}{{2, 0, `{"version":1,"beat_ms":60000}`}, {kind, 1, meta}} {
			var length uint32 // of the frame that is answered
			_ = binary.Read(conn, binary.BigEndian, &length)
			_, _ = io.CopyN(io.Discard, conn, int64(length))
			head := []byte{0, 0, 0, byte(9 + len(says.meta)), says.kind, 0, 0, 0, says.op, 0, 0, 0, byte(len(says.meta))}
			_, _ = conn.Write(append(head, says.meta...))
		}
		accepted <- conn
	}()
	door, err = hapax.Dial(context.Background(), "unix:"+listener.Addr().String(), hapax.ConnectTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { door.Close() })
	return door, func() { listener.Close(); (<-accepted).Close() }
}

// Where the door dies behind a handler nobody is told that nothing ran. Where there is no door nothing runs.
func TestADoorThatDies(t *testing.T) {
	door, die := dying(t, 5, `{"attempt":1,"fence":1,"ticket":"T"}`)
	ran := 0
	handler := Once(door)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran++
		die()
		w.WriteHeader(http.StatusCreated)
	}))
	for _, want := range []struct {
		status int
		code   string
	}{{502, "upstream-failed"}, {503, "store-unavailable"}} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("POST", "/payments", nil))
		response := recorder.Result()
		problem := ProblemOf(response)
		if problem == nil || response.StatusCode != want.status || problem.Code != want.code ||
			response.Header.Get("Retry-After") != "1" || ran != 1 {
			t.Errorf("%d %v, after %d runs", response.StatusCode, problem, ran)
		}
	}
}

// A door that ends runs nothing: the client may ask again.
func TestADoorThatEnds(t *testing.T) {
	door, die := dying(t, 12, `{"error":"unavailable","text":"the door ends","kind":3}`)
	defer die()
	recorder := httptest.NewRecorder()
	Once(door)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it runs") })).
		ServeHTTP(recorder, httptest.NewRequest("POST", "/payments", nil))
	response := recorder.Result()
	if problem := ProblemOf(response); problem == nil || response.StatusCode != 503 || problem.Code != "store-unavailable" {
		t.Error(response.StatusCode, problem)
	}
}
