// SPDX-License-Identifier: Apache-2.0

// Package hapaxgin is [hapaxhttp.Once] for gin.
package hapaxgin

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"hapax.example/hapax"
	"hapax.example/hapax/hapaxhttp"
)

// Once returns a middleware that runs the handlers behind it once for each Idempotency-Key, and gives
// every repeat the first response. All that is said of hapaxhttp.Once holds, but that it is put where
// it is wanted: it looks at no method.
//
//	router.POST("/payments", hapaxgin.Once(door, hapaxhttp.Scope("payments")), pay)
func Once(door *hapax.Door, options ...hapaxhttp.Option) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer := c.Writer
		defer func() { c.Writer = outer }() // also where a handler panics: gin.Recovery answers then
		hapaxhttp.Serve(door, outer, c.Request, func(w http.ResponseWriter, r *http.Request) {
			c.Request = r
			c.Writer = &writer{ResponseWriter: outer, to: w, status: http.StatusOK, size: -1}
			c.Next()
			c.Writer.WriteHeaderNow()
		}, options...)
		c.Abort() // where a stored response was given
	}
}

// writer is gin's ResponseWriter before a recorder. What it has of outer is not used for the response.
type writer struct {
	gin.ResponseWriter
	to     http.ResponseWriter
	status int
	size   int
}

func (w *writer) Header() http.Header { return w.to.Header() }
func (w *writer) Status() int         { return w.status }
func (w *writer) Size() int           { return w.size }
func (w *writer) Written() bool       { return w.size >= 0 }

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.to.WriteHeader(w.status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush does nothing: the response is sent once it is stored.
func (w *writer) Flush() {}
