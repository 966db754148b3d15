package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"github.com/usher-rtc/usher/internal/bench/peers"
	"github.com/usher-rtc/usher/internal/bench/table"
)

// profileFor is how long the relay is kept busy for each profile. The profiler
// takes a hundred samples for each second of processor time, and the relay works
// for a quarter of the time: it is stopped while its queues are filled.
const profileFor = 30 * time.Second

// profile says where the relay's time goes at saturation, by its own CPU profile.
func (b *bench) profile() error {
	if !b.peer("usher") {
		return nil
	}
	clients := slices.Max(b.axes.clients)
	took := profileFor
	if b.quick {
		took /= 4
	}
	var lines []string
	t := table.New(os.Stdout, "direction\tsamples\t"+shareNames("\t")+"top of its own code\t")
	for _, d := range b.axes.dirs {
		if b.stopped.Load() {
			return errStopped
		}
		progress("profile, %s", d)
		s, err := b.profileOf(cell{clients: clients, sizes: fixed, dir: d}, took)
		if err != nil {
			return err
		}
		row := fmt.Sprintf("%s\t%d\t", d, s.samples)
		for g := range numGroups {
			row += fmt.Sprintf("%.1f\t", s.percent(g))
			lines = append(lines, fmt.Sprintf("profile %s %s %.1f", d, g, s.percent(g)))
		}
		t.Row("%s%s\t", row, s.hottest(3))
	}
	fmt.Println("\nwhere the relay's processor time goes at saturation, 160 bytes, per cent of the samples")
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range lines {
		fmt.Println(l)
	}
	return nil
}

// profileOf keeps a relay busy for a time and returns the shares of its profile.
func (b *bench) profileOf(c cell, took time.Duration) (*shares, error) {
	p := peers.NewProfiledUsher()
	if err := p.Start(b.env); err != nil {
		return nil, err
	}
	defer func() { _ = p.Stop() }() // ended by a signal, which is what Wait reports
	if err := p.Establish(c.clients); err != nil {
		return nil, err
	}
	t := newTraffic(b.env, p, c)
	type answer struct {
		data []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		data, err := fetchProfile(p.ProfileURL(took), took)
		done <- answer{data, err}
	}()
	var a answer
	for busy := true; busy; {
		if _, err := t.drain(b.fill, 10); err != nil {
			return nil, err
		}
		select {
		case a = <-done:
			busy = false
		default:
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	if b.profiles != "" {
		// For "go tool pprof".
		if err := os.WriteFile(filepath.Join(b.profiles, string(c.dir)+".pb.gz"), a.data, 0o600); err != nil {
			return nil, err
		}
	}
	prof, err := profile.Parse(bytes.NewReader(a.data))
	if err != nil {
		return nil, fmt.Errorf("the relay's profile: %w", err)
	}
	s := sharesOf(prof)
	if s.samples == 0 {
		return nil, errors.New("the relay's profile has no samples")
	}
	return s, nil
}

func fetchProfile(url string, took time.Duration) ([]byte, error) {
	client := http.Client{Timeout: took + 10*time.Second}
	resp, err := client.Get(url) //nolint:noctx // the client has a limit
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(b))
	}
	return b, err
}
