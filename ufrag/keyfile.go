package ufrag

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"github.com/usher-rtc/usher/internal/config"
)

// A FileError says what is wrong with a key file or host file, and where. It
// never quotes a secret, not even one in the wrong place.
type FileError struct {
	// Path is the file; empty if the contents came from elsewhere.
	Path string
	// Line counts from 1; 0 stands for the file as a whole.
	Line int
	// Problem says what is wrong and what would be right.
	Problem string
}

// Error implements the error interface, in the way of compilers:
// "keys.txt:3: two keys have the id 'A'".
func (e *FileError) Error() string {
	path := e.Path
	if path == "" {
		path = "input"
	}
	if e.Line == 0 {
		return path + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d: %s", path, e.Line, e.Problem)
}

// ParseKeyFile reads a set of keys from text: one key a line, as in
//
//	# usher keys; keep this file readable by its owner alone
//	A mGz0Vn8n0Zy3C3Xo2ZkqXcYVp7ZfT2U2uQ3a1b0c9dE= mint
//	B kq0Xn5s1b2V3c4B5d6E7f8G9h0I1j2K3l4M5n6O7p8Q=
//
// that is, the key id, the base64 of the 32-byte secret (RFC 4648 section 4, with
// padding), and the word mint on exactly one line. Everything from a # is a
// comment; empty lines do not count. The result goes into [NewKeyring] or
// [Keyring.Replace] as it is. The error is a [*FileError].
//
// This package does not check the permissions of a key file: mounted secrets have
// odd ones. Keep it readable by its owner alone; whoever reads it can route packets and
// impersonate transceivers towards relays, though not read or forge media.
func ParseKeyFile(text []byte) (mint byte, keys []Key, err error) {
	lines := make(map[byte]int) // of each id
	for n, fields := range config.Lines(text) {
		key, minting, problem := parseKeyLine(fields)
		if problem == "" {
			problem = conflict(key, keys, lines)
		}
		if minting && mint != 0 {
			problem = fmt.Sprintf("key %q is to mint already (line %d); one key can", mint, lines[mint])
		}
		if problem != "" {
			return 0, nil, &FileError{Line: n, Problem: problem}
		}
		if minting {
			mint = key.ID
		}
		keys = append(keys, key)
		lines[key.ID] = n
	}
	if len(keys) == 0 {
		return 0, nil, &FileError{Problem: "has no keys"}
	}
	if mint == 0 {
		return 0, nil, &FileError{Problem: "no key is to mint; write the word mint after one secret"}
	}
	return mint, keys, nil
}

func parseKeyLine(fields []string) (key Key, minting bool, problem string) {
	if id := fields[0]; len(id) != 1 || !validID(id[0]) {
		// Not quoted: it may be a secret in the wrong place.
		return Key{}, false, "the line must start with a key id, one of 0-9, A-Z, a-z, and a space"
	}
	key.ID = fields[0][0]
	if len(fields) < 2 {
		return Key{}, false, fmt.Sprintf("key %q has no secret", key.ID)
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return Key{}, false, fmt.Sprintf("the secret of key %q is not base64 with padding", key.ID)
	}
	if len(secret) != SecretLength {
		return Key{}, false, fmt.Sprintf("the secret of key %q has %d bytes, not %d", key.ID, len(secret), SecretLength)
	}
	copy(key.Secret[:], secret)
	if len(fields) > 3 || len(fields) == 3 && fields[2] != "mint" {
		return Key{}, false, fmt.Sprintf("only the word mint may follow the secret of key %q", key.ID)
	}
	return key, len(fields) == 3, ""
}

func conflict(key Key, earlier []Key, lines map[byte]int) string {
	if key.Secret == [SecretLength]byte{} {
		return fmt.Sprintf("the secret of key %q is all zeros", key.ID)
	}
	for _, other := range earlier {
		if other.ID == key.ID {
			return fmt.Sprintf("key %q is on line %d already", key.ID, lines[key.ID])
		}
		if other.Secret == key.Secret {
			return fmt.Sprintf("key %q has the same secret as key %q on line %d", key.ID, other.ID, lines[other.ID])
		}
	}
	return ""
}

// FormatKeyFile returns the text of a key file with these keys, which
// [ParseKeyFile] reads back. It shows the secrets. The error is a [*ConfigError],
// as from [NewKeyring].
func FormatKeyFile(mint byte, keys ...Key) ([]byte, error) {
	if err := checkKeys(mint, keys); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("# usher keys; keep this file readable by its owner alone\n")
	for _, key := range keys {
		fmt.Fprintf(&b, "%c %s", key.ID, base64.StdEncoding.EncodeToString(key.Secret[:]))
		if key.ID == mint {
			b.WriteString(" mint")
		}
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}

// ReadKeyFile returns a keyring with the keys in a file, see [ParseKeyFile]. The
// error is a [*FileError], or that of reading the file.
func ReadKeyFile(path string) (*Keyring, error) {
	k := new(Keyring)
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if err := k.loadFile(path, text); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keyring) loadFile(path string, text []byte) error {
	mint, keys, err := ParseKeyFile(text)
	if err != nil {
		return inFile(path, err)
	}
	return k.Replace(mint, keys...)
}

// WatchFile loads the keys from a file into the keyring and keeps it in step with
// the file from then on. If the file is missing or wrong at the start, it returns
// the error and changes nothing; later on, the keyring keeps the last good set.
// The caller closes the watcher; the keyring stays as it is then.
func (k *Keyring) WatchFile(cfg WatchConfig) (*Watcher, error) {
	return Watch(cfg, "keys", func(text []byte) error { return k.loadFile(cfg.Path, text) })
}
