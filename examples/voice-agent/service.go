package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

// stopLimit is how long calls may take to end when the service does.
const stopLimit = time.Second

// runService is the service: a process that knows the bridge and nothing of
// WebRTC. It may run anywhere, any number of times.
func runService(ctx context.Context, args []string) error {
	flags := cli.NewFlags("voice-agent service", "[flags]")
	listen := flags.String("listen", "127.0.0.1:9000", "`address` for transceivers")
	tied := flags.Bool("tied", false, "end when standard input does, so that a parent that dies leaves nothing behind")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	handler, err := bridge.NewHandler(bridge.HandlerConfig{Serve: converse, Codec: codec.String()})
	if err != nil {
		return err
	}
	server, err := cli.Listen(*listen, handler)
	if err != nil {
		return err
	}
	defer server.Close()
	fmt.Println(server.URL())
	if *tied {
		over, end := context.WithCancel(ctx)
		ctx = over
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			end()
		}()
	}
	<-ctx.Done()
	limit, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if err := handler.Shutdown(limit); err != nil { // the transceivers go on with another instance
		return fmt.Errorf("calls do not end: %w", err)
	}
	return nil
}
