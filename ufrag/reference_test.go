package ufrag

import (
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math/big"
	"strings"
)

// The reference is the wire format written down again as plainly as possible: big
// integers, HKDF by hand, no tricks. The package is compared against it.

const refAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// refHKDF is RFC 5869 with an empty salt, for up to 32 bytes.
func refHKDF(secret []byte, label string, n int) []byte {
	extract := hmac.New(sha256.New, make([]byte, sha256.Size))
	extract.Write(secret)
	expand := hmac.New(sha256.New, extract.Sum(nil))
	expand.Write([]byte(label))
	expand.Write([]byte{1})
	return expand.Sum(nil)[:n]
}

func refText(id byte, block []byte) string {
	v := new(big.Int).SetBytes(block)
	digits := make([]byte, 22)
	base, d := big.NewInt(62), new(big.Int)
	for i := len(digits) - 1; i >= 0; i-- {
		v.DivMod(v, base, d)
		digits[i] = refAlphabet[d.Int64()]
	}
	return string(id) + string(digits)
}

// refSeal enciphers any 16 bytes into a ufrag, valid or not.
func refSeal(k Key, plain []byte) string {
	c, err := aes.NewCipher(refHKDF(k.Secret[:], "usher v1 ufrag block", 16))
	if err != nil {
		panic(err)
	}
	out := make([]byte, 16)
	c.Encrypt(out, plain)
	return refText(k.ID, out)
}

func refBlock(r Route) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(r.Kind)<<60|uint64(r.Cluster)<<48|r.Host)
	b = binary.BigEndian.AppendUint32(b, r.Session)
	return append(b, 0, 0, 0, 0)
}

func refDecode(keys []Key, ufrag string) (Route, error) {
	if len(ufrag) != 23 {
		return Route{}, ErrLength
	}
	var key *Key
	for i := range keys {
		if keys[i].ID == ufrag[0] {
			key = &keys[i]
		}
	}
	if key == nil {
		return Route{}, ErrKeyID
	}
	v := new(big.Int)
	for _, c := range []byte(ufrag[1:]) {
		d := strings.IndexByte(refAlphabet, c)
		if d < 0 {
			return Route{}, ErrAlphabet
		}
		v.Add(v.Mul(v, big.NewInt(62)), big.NewInt(int64(d)))
	}
	if v.BitLen() > 128 {
		return Route{}, ErrRange
	}
	c, err := aes.NewCipher(refHKDF(key.Secret[:], "usher v1 ufrag block", 16))
	if err != nil {
		panic(err)
	}
	plain := make([]byte, 16)
	c.Decrypt(plain, v.FillBytes(make([]byte, 16)))
	if plain[12]|plain[13]|plain[14]|plain[15] != 0 {
		return Route{}, ErrCheck
	}
	r := Route{
		Kind:    Kind(plain[0] >> 4),
		Cluster: uint16(plain[0]&15)<<8 | uint16(plain[1]),
		Session: binary.BigEndian.Uint32(plain[8:]),
	}
	for _, b := range plain[2:8] {
		r.Host = r.Host<<8 | uint64(b)
	}
	if r.Kind != 1 && r.Kind != 2 {
		return Route{}, ErrKind
	}
	return r, nil
}

func refPassword(k Key, ufrag string) string {
	mac := hmac.New(sha256.New, refHKDF(k.Secret[:], "usher v1 ice password", 32))
	mac.Write([]byte(ufrag))
	return strings.TrimRight(base64.StdEncoding.EncodeToString(mac.Sum(nil)[:24]), "=")
}
