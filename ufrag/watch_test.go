package ufrag

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func keyText(tb testing.TB, mint byte, ids string) string {
	tb.Helper()
	var keys []Key
	for _, id := range []byte(ids) {
		keys = append(keys, testKey(id))
	}
	text, err := FormatKeyFile(mint, keys...)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

func TestWatchKeyFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys")
		ring := testKeyring(t)
		var mu sync.Mutex
		var reports []error
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(reports)
		}
		var log bytes.Buffer
		cfg := WatchConfig{
			Path:     path,
			Interval: time.Second,
			Logger:   slog.New(slog.NewTextHandler(&log, nil)),
			OnReload: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, err)
			},
		}
		if w, err := ring.WatchFile(cfg); w != nil || !errors.Is(err, fs.ErrNotExist) || ring.String() != "keyring AB, mint A" {
			t.Fatalf("missing at the start: %v, %v, %v", w, err, ring)
		}
		writeFile(t, path, keyText(t, 'C', "C"))
		w, err := ring.WatchFile(cfg)
		if err != nil || ring.String() != "keyring C, mint C" {
			t.Fatal(ring, err)
		}
		next := func(what string, wantRing string, wantReports int) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if ring.String() != wantRing || count() != wantReports {
				t.Fatalf("%s: %v, reports %v", what, ring, reports)
			}
		}
		next("nothing changed", "keyring C, mint C", 0)
		writeFile(t, path, keyText(t, 'C', "CD"))
		next("a key more", "keyring CD, mint C", 1)

		// The same size and time of modification, as a rotation by script may have.
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, keyText(t, 'C', "CE"))
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		next("same size and time", "keyring CE, mint C", 2)

		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		next("removed", "keyring CE, mint C", 3)
		next("still removed", "keyring CE, mint C", 3)
		writeFile(t, path, "C\n")
		next("broken", "keyring CE, mint C", 4)
		next("still broken", "keyring CE, mint C", 4)
		writeFile(t, path, keyText(t, 'C', "CE"))
		next("as before", "keyring CE, mint C", 5)
		next("nothing changed", "keyring CE, mint C", 5)
		for i, want := range []bool{true, true, false, false, true} {
			if (reports[i] == nil) != want {
				t.Errorf("report %d: %v", i, reports[i])
			}
		}
		var fe *FileError
		if !errors.As(reports[3], &fe) || fe.Path != path || fe.Line != 1 {
			t.Errorf("report of the broken file: %v", reports[3])
		}
		if n := strings.Count(log.String(), "\n"); n != 5 {
			t.Errorf("%d lines logged:\n%s", n, log.String())
		}

		writeFile(t, path, keyText(t, 'F', "F"))
		if err := w.Reload(); err != nil || ring.String() != "keyring F, mint F" || count() != 6 {
			t.Errorf("Reload: %v, %v, reports %v", err, ring, reports)
		}
		writeFile(t, path, "")
		if err1, err2 := w.Reload(), w.Reload(); err1 == nil || err2 == nil || count() != 7 {
			t.Errorf("Reload of an empty file: %v, %v, reports %v", err1, err2, reports)
		}
		if err := errors.Join(w.Close(), w.Close()); err != nil {
			t.Error(err)
		}
		writeFile(t, path, keyText(t, 'C', "C"))
		next("closed", "keyring F, mint F", 7)
	})
}

// Nothing of the watcher runs any more when Close returns.
func TestWatcherCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts")
		writeFile(t, path, "")
		f, err := NewFile(WatchConfig{
			Path: path, Interval: time.Second, Logger: slog.New(slog.DiscardHandler),
			OnReload: func(error) { time.Sleep(time.Minute) },
		})
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, "1 10.0.0.1:1\n")
		time.Sleep(2 * time.Second) // into the callback
		before := time.Now()
		if err := f.Close(); err != nil || time.Since(before) != 59*time.Second {
			t.Errorf("Close took %v: %v", time.Since(before), err)
		}
	})
}

func TestWatchConfig(t *testing.T) {
	for field, cfg := range map[string]WatchConfig{
		"Path":     {},
		"Interval": {Path: "keys", Interval: -1},
	} {
		var ce *ConfigError
		if _, err := new(Keyring).WatchFile(cfg); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("WatchFile(%+v): %v", cfg, err)
		}
		if _, err := NewFile(cfg); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("NewFile(%+v): %v", cfg, err)
		}
	}
}

func TestWatchDefaultInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts")
		writeFile(t, path, "")
		f, err := NewFile(WatchConfig{Path: path, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		writeFile(t, path, "1 10.0.0.1:1\n")
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if f.Len() != 0 {
			t.Error("reloaded too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if f.Len() != 1 {
			t.Error("not reloaded after the documented 5 seconds")
		}
	})
}

func TestHostFile(t *testing.T) {
	for text, want := range map[string]string{
		"1":                                "input:1: has 1 fields; a directory id and an address with port are wanted",
		"1 10.0.0.1:1 x":                   "input:1: has 3 fields; a directory id and an address with port are wanted",
		"\n-1 10.0.0.1:1":                  `input:2: "-1" is not a directory id, 0 to 281474976710655`,
		"281474976710656 10.0.0.1:1":       `input:1: "281474976710656" is not a directory id, 0 to 281474976710655`,
		"0x10 10.0.0.1:1":                  `input:1: "0x10" is not a directory id, 0 to 281474976710655`,
		"1 10.0.0.1":                       `input:1: "10.0.0.1" is not an address with port`,
		"1 host-1.example:1":               `input:1: "host-1.example:1" is not an address with port`,
		"1 10.0.0.1:0":                     "input:1: 10.0.0.1:0 is not a unicast address with a port and without zone",
		"1 [::]:1":                         "input:1: [::]:1 is not a unicast address with a port and without zone",
		"1 [::ffff:0.0.0.0]:1":             "input:1: 0.0.0.0:1 is not a unicast address with a port and without zone",
		"1 [fe80::1%lo]:1":                 "input:1: [fe80::1%lo]:1 is not a unicast address with a port and without zone",
		"1 10.0.0.1:1\n# x\n01 10.0.0.2:1": "input:3: host 1 is on line 1 already",
	} {
		if table, err := ParseHostFile([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: %v\ngot  %v\nwant %s", text, table, err, want)
		}
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	writeFile(t, path, "# hosts\n17 10.0.0.7:3478\n18 [2001:db8::7]:3478 # v6\n19 [::ffff:10.0.0.9]:3478\n")
	f, err := NewFile(WatchConfig{Path: path, Interval: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := map[uint64]string{17: "10.0.0.7:3478", 18: "[2001:db8::7]:3478", 19: "10.0.0.9:3478"}
	check := func() {
		t.Helper()
		if f.Len() != len(want) {
			t.Errorf("%d hosts", f.Len())
		}
		for id, s := range want {
			if ap, ok := f.Resolve(Route{Kind: KindDirectory, Host: id}); !ok || ap != netip.MustParseAddrPort(s) {
				t.Errorf("host %d: %s, %v", id, ap, ok)
			}
		}
		for _, r := range []Route{{Kind: KindDirectory, Host: 20}, {Kind: KindIPv4, Host: 17}} {
			if ap, ok := f.Resolve(r); ok {
				t.Errorf("%v: %s", r, ap)
			}
		}
	}
	check()
	writeFile(t, path, "17 10.0.0.7:3478\n17 10.0.0.8:3478\n")
	if err := f.Reload(); err == nil || err.Error() != path+":2: host 17 is on line 1 already" {
		t.Error(err)
	}
	check()
	writeFile(t, path, "17 10.0.0.8:3478\n")
	if err := f.Reload(); err != nil {
		t.Error(err)
	}
	want = map[uint64]string{17: "10.0.0.8:3478"}
	check()
}
