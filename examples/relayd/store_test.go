package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/flowtable/redisflow"
)

func TestStoreConfig(t *testing.T) {
	for _, tt := range []struct {
		name, url string
		want      redisflow.Config
	}{
		{"plain", "redis://localhost:6380", redisflow.Config{Addrs: []string{"localhost:6380"}}},
		{"default port", "redis://10.0.0.7", redisflow.Config{Addrs: []string{"10.0.0.7:6379"}}},
		{"ipv6", "redis://[2001:db8::7]", redisflow.Config{Addrs: []string{"[2001:db8::7]:6379"}}},
		{"login and database", "redis://flows:s3cr%2Ft@h:1/5", redisflow.Config{Addrs: []string{"h:1"}, Username: "flows", Password: "s3cr/t", DB: 5}},
		{"password alone", "redis://:pw@h:1", redisflow.Config{Addrs: []string{"h:1"}, Password: "pw"}},
		{"tls", "rediss://h", redisflow.Config{Addrs: []string{"h:6379"}, TLS: &tls.Config{ServerName: "h", MinVersion: tls.VersionTLS12}}},
		{"sentinels", "redis://a:26379?master=flows&addr=b:26379", redisflow.Config{Addrs: []string{"a:26379", "b:26379"}, MasterName: "flows"}},
		{"cluster", "redis://a:1?cluster=true&addr=b:1&addr=c:1&prefix=eu:", redisflow.Config{Addrs: []string{"a:1", "b:1", "c:1"}, Cluster: true, Prefix: "eu:"}},
		{"cluster with tls", "rediss://a:1?cluster=1&addr=b:1", redisflow.Config{Addrs: []string{"a:1", "b:1"}, Cluster: true, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := storeConfig(tt.url)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// TestStoreErrors checks that a wrong -redis says why, and never repeats the
// password.
func TestStoreErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "redis")
	if err := os.WriteFile(file, []byte("redis://:s3cret@h/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ text, want string }{
		{"localhost:6379", "redis://"},
		{"http://:s3cret@h", "redis://"},
		{"redis://:s3cret@h:port", "not a URL"},
		{"redis://:s3cret@/0", "no host"},
		{"redis://:s3cret@h/first", "database"},
		{"redis://:s3cret@h?cluster=perhaps", "cluster"},
		{"redis://:s3cret@h?db=1", "db"},
		{"redis://:s3cret@h?addr=b:1", "Addrs"},
		{"@" + file, "database"},
		{"@" + file + ".none", file},
	} {
		_, err := openStore(tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q in it", tt.text, err, tt.want)
		}
	}
}
