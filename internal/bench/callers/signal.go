package callers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/web"
	"github.com/usher-rtc/usher/ufrag"
)

// client has room for as many calls at once as a fleet makes.
var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// Post sends an offer to a server's control port, "127.0.0.1:PORT".
func Post(ctx context.Context, server, offer string) (id, answer string, err error) {
	answer, header, err := web.Offer(ctx, client, "http://"+server+"/calls", offer, nil)
	return header.Get(hosts.IDHeader), answer, err
}

// Delete ends a session at the server and returns when it has ended.
func Delete(ctx context.Context, server, id string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://"+server+"/calls/"+id, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // or the connection cannot be used again
	return err
}

// RouteOf returns the route in the ufrag of a transceiver's answer.
func RouteOf(codec ufrag.Codec, answer string) (ufrag.Route, error) {
	text := attribute(answer, "ice-ufrag")
	if text == "" {
		return ufrag.Route{}, fmt.Errorf("no ufrag in the answer: %s", answer)
	}
	return codec.Decode([]byte(text))
}

// attribute returns the value of the first a=key: line.
func attribute(sdp, key string) string {
	for line := range strings.Lines(sdp) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "a="+key+":"); ok {
			return v
		}
	}
	return ""
}
