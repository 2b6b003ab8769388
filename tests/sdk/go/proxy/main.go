// Passes requests on to an API, each Idempotency-Key once: proxy net/http|gin URL (tests/sdk/test_middlewares.py).
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"

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
	api, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(api)
	handler := hapaxhttp.Once(door)(proxy)
	if os.Args[1] == "gin" {
		gin.SetMode(gin.ReleaseMode)
		router := gin.New()
		router.NoRoute(hapaxgin.Once(door), gin.WrapH(proxy))
		handler = router
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, handler))
}
