// The payments of sdk/go/example by gin: gin ADDRESS (tests/sdk/test_go.py). For storms it has orders, too, whose
// effects are lines of the file $EFFECTS (test_gin_storm.py).
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"hapax.example/hapax"
	"hapax.example/hapax/hapaxgin"
	"hapax.example/hapax/hapaxhttp"
)

// order takes its time before its effect and after it.
func order(c *gin.Context) {
	time.Sleep(time.Duration(rand.Intn(20)) * time.Millisecond)
	file, err := os.OpenFile(os.Getenv("EFFECTS"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(file, hapaxhttp.OpOf(c.Request.Context()).Key())
		file.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
	time.Sleep(time.Duration(rand.Intn(20)) * time.Millisecond)
	c.String(http.StatusCreated, "done")
}

func main() {
	door, err := hapax.Dial(context.Background(), "", hapax.ConnectTimeout(time.Minute))
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
	asks := hapax.Reconcile(func(context.Context, *hapax.Op) (int, bool, error) { return 0, false, nil })
	router.POST("/asks", hapaxgin.Once(door, hapaxhttp.With(asks)), order)
	router.POST("/orders", hapaxgin.Once(door, hapaxhttp.Scope("orders")), order)
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("payments: http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, router))
}
