package main

import "github.com/usher-rtc/usher/ufrag"

// keyring returns random keys, which are all that one process needs, or those of
// a file, so that ufragctl can read its ufrags.
func keyring(file string) (*ufrag.Keyring, error) {
	if file != "" {
		return ufrag.ReadKeyFile(file)
	}
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		return nil, err
	}
	return ufrag.NewKeyring(key.ID, key)
}
