// The payments of sdk/go/example by gin: gin ADDRESS (tests/sdk/test_go.py).
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"hapax.example/hapax"
	"hapax.example/hapax/hapaxgin"
	"hapax.example/hapax/hapaxhttp"
)

func main() {
	door, err := hapax.Dial(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	var charges int64
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
	router.POST("/payments", hapaxgin.Once(door, hapaxhttp.Scope("payments"),
		hapaxhttp.With(hapax.Hold, hapax.Policy("key", "required"))), func(c *gin.Context) {
		var order struct{ Amount int }
		if c.ShouldBindJSON(&order) != nil || order.Amount <= 0 {
			c.String(http.StatusBadRequest, "an amount above 0 is needed")
			return
		}
		if order.Amount == 13 {
			panic("thirteen")
		}
		if order.Amount == 17 {
			c.Data(http.StatusCreated, "text/plain", make([]byte, 17<<20))
			return
		}
		c.Header("Location", "/payments/1")
		c.String(http.StatusCreated, "charge %s (effect %d)\n", hapaxhttp.OpOf(c.Request.Context()).Key(),
			atomic.AddInt64(&charges, 1))
	})
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("payments: http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, router))
}
