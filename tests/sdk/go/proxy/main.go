// Passes requests on to an API, each Idempotency-Key once: proxy URL (tests/sdk/test_middlewares.py).
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

	"hapax.example/hapax"
	"hapax.example/hapax/hapaxhttp"
)

func main() {
	door, err := hapax.Dial(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	api, err := url.Parse(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, hapaxhttp.Once(door)(httputil.NewSingleHostReverseProxy(api))))
}
