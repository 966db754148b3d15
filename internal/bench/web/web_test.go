package web

import (
	"encoding/gob"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/internal/meter"
)

func server(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"sessions": 3}`)
	})
	mux.HandleFunc("GET /debug/audio", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("since") != "12" {
			http.Error(w, "since what?", http.StatusBadRequest)
			return
		}
		_ = gob.NewEncoder(w).Encode(meter.Report{Calls: []meter.CallReport{{Session: 7, Sent: []meter.Event{{Seq: 1, At: 13}}}}})
	})
	mux.HandleFunc("POST /calls", func(w http.ResponseWriter, r *http.Request) {
		offer, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/sdp" || r.Header.Get("X-Region") != "east" {
			http.Error(w, " not so ", http.StatusBadRequest)
			return
		}
		w.Header().Set("Location", "/calls/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "answer to "+string(offer))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestGet(t *testing.T) {
	s := server(t)
	var page struct{ Sessions int }
	if err := Get(t.Context(), s.Client(), s.URL+"/page", &page); err != nil || page.Sessions != 3 {
		t.Errorf("%+v, %v", page, err)
	}
	var raw []byte
	if err := Get(t.Context(), s.Client(), s.URL+"/page", &raw); err != nil || string(raw) != `{"sessions": 3}` {
		t.Errorf("%q, %v", raw, err)
	}
	if err := Get(t.Context(), s.Client(), s.URL+"/page", nil); err != nil {
		t.Error(err)
	}
	if err := Get(t.Context(), s.Client(), s.URL+"/other", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("of no page: %v", err)
	}
}

func TestAudio(t *testing.T) {
	s := server(t)
	got, err := Audio(t.Context(), s.Client(), s.URL, 12)
	want := map[uint32]meter.CallReport{7: {Session: 7, Sent: []meter.Event{{Seq: 1, At: 13}}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Audio(t.Context(), s.Client(), s.URL, 13); err == nil {
		t.Error("a refusal is no error")
	}
}

func TestOffer(t *testing.T) {
	s := server(t)
	header := http.Header{"X-Region": {"east"}}
	answer, with, err := Offer(t.Context(), s.Client(), s.URL+"/calls", "an offer", header)
	if err != nil || answer != "answer to an offer" || with.Get("Location") != "/calls/1" || len(header) != 1 {
		t.Errorf("%q, %v, %v", answer, with, err)
	}
	if _, _, err := Offer(t.Context(), s.Client(), s.URL+"/calls", "an offer", nil); err == nil || !strings.HasSuffix(err.Error(), "400 Bad Request: not so") {
		t.Errorf("a refusal: %v", err)
	}
}
