package ufrag

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseKeyFile(t *testing.T) {
	a, b := testKey('A'), testKey('7')
	sa := base64.StdEncoding.EncodeToString(a.Secret[:])
	sb := base64.StdEncoding.EncodeToString(b.Secret[:])
	short := base64.StdEncoding.EncodeToString(a.Secret[:31])
	long := base64.StdEncoding.EncodeToString(append(a.Secret[:], 1))
	zero := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, tt := range []struct {
		name, text string
		want       string // ids, minting one first; or the error
	}{
		{"one", "A " + sa + " mint\n", "A"},
		{"no newline at the end", "A " + sa + " mint", "A"},
		{"order of the lines", "7 " + sb + "\nA " + sa + " mint\n", "A7"},
		{"comments and space", "# keys\r\n\r\n \t7\t" + sb + "  mint # since May\r\nA " + sa + "#old\n", "7A"},

		{"empty", "", "input: has no keys"},
		{"comments only", "# A " + sa + " mint\n", "input: has no keys"},
		{"nothing mints", "A " + sa + "\n7 " + sb + "\n", "input: no key is to mint; write the word mint after one secret"},
		{"two mint", "A " + sa + " mint\n\n7 " + sb + " mint\n", "input:3: key 'A' is to mint already (line 1); one key can"},
		{"id twice", "A " + sa + " mint\n# and\nA " + sb + "\n", "input:3: key 'A' is on line 1 already"},
		{"secret twice", "A " + sa + " mint\n7 " + sa + "\n", "input:2: key '7' has the same secret as key 'A' on line 1"},
		{"no secret", "A\n", "input:1: key 'A' has no secret"},
		{"mint in place of the secret", "A mint\n", "input:1: the secret of key 'A' has 3 bytes, not 32"},
		{"one byte", "A AA== mint\n", "input:1: the secret of key 'A' has 1 bytes, not 32"},
		{"31 bytes", "A " + short + " mint\n", "input:1: the secret of key 'A' has 31 bytes, not 32"},
		{"33 bytes", "A " + long + " mint\n", "input:1: the secret of key 'A' has 33 bytes, not 32"},
		{"all zeros", "A " + zero + " mint\n", "input:1: the secret of key 'A' is all zeros"},
		{"padding missing", "A " + sa[:43] + " mint\n", "input:1: the secret of key 'A' is not base64 with padding"},
		{"bits to spare", "A " + sa[:42] + "h= mint\n", "input:1: the secret of key 'A' is not base64 with padding"},
		{"not base64", "A " + strings.Repeat("-", 44) + " mint\n", "input:1: the secret of key 'A' is not base64 with padding"},
		{"id missing", sa + " mint\n", "input:1: the line must start with a key id, one of 0-9, A-Z, a-z, and a space"},
		{"id of two characters", "\nAB " + sa + " mint\n", "input:2: the line must start with a key id, one of 0-9, A-Z, a-z, and a space"},
		{"id no letter", "+ " + sa + " mint\n", "input:1: the line must start with a key id, one of 0-9, A-Z, a-z, and a space"},
		{"another word", "A " + sa + " Mint\n", "input:1: only the word mint may follow the secret of key 'A'"},
		{"too many words", "A " + sa + " mint mint\n", "input:1: only the word mint may follow the secret of key 'A'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mint, keys, err := ParseKeyFile([]byte(tt.text))
			if err != nil {
				if err.Error() != tt.want {
					t.Errorf("got  %v\nwant %s", err, tt.want)
				}
				var fe *FileError
				if !errors.As(err, &fe) {
					t.Errorf("%T is not a FileError", err)
				}
				return
			}
			got := string(mint)
			for _, k := range keys {
				if k.ID != mint {
					got += string(k.ID)
				}
				if k.Secret != testKey(k.ID).Secret {
					t.Errorf("%v has another secret", k)
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReadKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := ReadKeyFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	text, err := FormatKeyFile('B', testKey('A'), testKey('B'))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, string(text))
	k, err := ReadKeyFile(path)
	if err != nil || k.String() != "keyring AB, mint B" {
		t.Errorf("%v, %v", k, err)
	}
	writeFile(t, path, "A\n")
	if k, err := ReadKeyFile(path); k != nil || err == nil || err.Error() != path+":1: key 'A' has no secret" {
		t.Errorf("%v, %v", k, err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(maxFile+1), f.Close()); err != nil {
		t.Fatal(err)
	}
	var fe *FileError
	if _, err := ReadKeyFile(path); !errors.As(err, &fe) || fe.Path != path || fe.Line != 0 {
		t.Errorf("endless file: %v", err)
	}
}

// writeFile replaces a file as its documentation says.
func writeFile(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}
