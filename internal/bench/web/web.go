package web

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/usher-rtc/usher/internal/meter"
)

// Get reads a page into v: as it is into a *[]byte, and anything else as JSON. nil
// stands for no interest in what it says. A status that is not 200 is an error.
func Get(ctx context.Context, client *http.Client, url string, v any) error {
	return get(ctx, client, url, func(body io.Reader) (err error) {
		switch v := v.(type) {
		case nil:
			_, err = io.Copy(io.Discard, body)
		case *[]byte:
			*v, err = io.ReadAll(body)
		default:
			err = json.NewDecoder(body).Decode(v)
		}
		return err
	})
}

// Audio returns the records since a time of meter.Now that a transceiver with the
// meter application has, by session. server is its address with http://.
func Audio(ctx context.Context, client *http.Client, server string, since int64) (map[uint32]meter.CallReport, error) {
	calls := make(map[uint32]meter.CallReport)
	err := get(ctx, client, fmt.Sprintf("%s/debug/audio?since=%d", server, since), func(body io.Reader) error {
		var report meter.Report
		if err := gob.NewDecoder(body).Decode(&report); err != nil {
			return err
		}
		for _, c := range report.Calls {
			calls[c.Session] = c
		}
		return nil
	})
	return calls, err
}

func get(ctx context.Context, client *http.Client, url string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	if err := read(response.Body); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}

// Offer posts an SDP offer, with further headers if there are any, and returns the
// answer and the header that came with it. A status that is not 201 is an error.
func Offer(ctx context.Context, client *http.Client, url, offer string, header http.Header) (answer string, with http.Header, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(offer))
	if err != nil {
		return "", nil, err
	}
	if header != nil {
		request.Header = header.Clone()
	}
	request.Header.Set("Content-Type", "application/sdp")
	response, err := client.Do(request)
	if err != nil {
		return "", nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", nil, err
	}
	if response.StatusCode != http.StatusCreated {
		return "", nil, fmt.Errorf("offer: %s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return string(body), response.Header, nil
}
