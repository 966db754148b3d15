package callers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/hosts"
)

// client has room for as many calls at once as a fleet makes.
var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// Post sends an offer to a server's control port, "127.0.0.1:PORT".
func Post(ctx context.Context, server, offer string) (id, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+server+"/calls", strings.NewReader(offer))
	if err != nil {
		return "", "", err
	}
	response, err := client.Do(r)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", "", err
	}
	if response.StatusCode != http.StatusCreated {
		return "", "", fmt.Errorf("offer: %s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return response.Header.Get(hosts.IDHeader), string(body), nil
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
