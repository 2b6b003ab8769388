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

// dying plays a door that tells one operation to run, and is gone once the handler calls what is returned.
func dying(t *testing.T) (door *hapax.Door, die func()) {
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
		}{{2, 0, `{"version":1,"beat_ms":60000}`}, {5, 1, `{"attempt":1,"fence":1,"ticket":"T"}`}} {
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
	door, die := dying(t)
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
