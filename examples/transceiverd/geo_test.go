package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const twoPlaces = `{
	"region_header": "X-Client-Region", "default": "eu", "most": 1, "prefixes": {"192.0.2.0/24": "us"},
	"places": [
		{"region": "eu", "latitude": 50.1, "longitude": 8.7, "ingresses": [{"id": 1, "advertise": "203.0.113.10:3478"}]},
		{"region": "us", "latitude": 39.0, "longitude": -77.5, "ingresses": [{"id": 2, "advertise": "198.51.100.10:3478"}]}
	]
}`

func TestPlacesFile(t *testing.T) {
	read := func(t *testing.T, text string) (func(*http.Request) uint16, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "places.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		steering, err := readPlaces(path)
		return func(r *http.Request) uint16 { return steering.Select(r)[0].ID }, err
	}
	pick, err := read(t, twoPlaces)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, header string
		want         uint16
	}{{"203.0.113.5:1", "", 1}, {"203.0.113.5:1", "us", 2}, {"192.0.2.7:1", "", 2}, {"192.0.2.7:1", "eu", 1}} {
		r := httptest.NewRequest(http.MethodPost, "/whip", http.NoBody)
		r.RemoteAddr = tt.from
		r.Header.Set("X-Client-Region", tt.header)
		if got := pick(r); got != tt.want {
			t.Errorf("from %s with %q: ingress %d, want %d", tt.from, tt.header, got, tt.want)
		}
	}
	for name, bad := range map[string]string{
		"a field that is not there": `{"regions": []}`, "no places": `{}`, "two objects": twoPlaces + "{}",
		"a bad address": strings.Replace(twoPlaces, "203.0.113.10:3478", "relay.example:3478", 1),
	} {
		if _, err := read(t, bad); err == nil || !strings.Contains(err.Error(), "places.json") {
			t.Errorf("%s: error %v, want one that names the file", name, err)
		}
	}
}
