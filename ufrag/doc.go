// Package ufrag puts the route to a session's owner into the ICE username
// fragment (RFC 8839 section 5.4), so that whoever holds the key can route the
// first packet of a WebRTC session without asking anybody.
//
// # What it owns
//
//   - [Route]: which process owns a session, and which of its sessions it is.
//   - [Codec], with [BlockCodec] as the standard implementation: a route to 23
//     letters and digits and back, and the ICE password that goes with them.
//   - [Keyring]: the secrets, their rotation, and every key derived from them,
//     including the ones for the trunk and the flow store. [ReadKeyFile] and
//     [Keyring.WatchFile] keep it in step with a file.
//   - [Minter]: fresh ufrags for the sessions of one process.
//   - [Resolver]: a route to a UDP address, from a snapshot, never blocking:
//     [EmbeddedIPv4], [Static], [File], [DNS], [Chain], and [AllowList], which
//     every result has to pass.
//
// # What it refuses
//
// It does no packet I/O and knows nothing about flows. It never guesses: a
// ufrag under an unknown key, of another length or with a wrong check is an
// ordinary error, never matched by prefix and never tried against other keys.
// It never prints a secret.
//
// # The wire format
//
// A ufrag is one key id character followed by exactly 22 digits in base 62
// (alphabet 0-9A-Za-z, most significant digit first) of one 128-bit block. The
// block is the AES-128 encryption of
//
//	bits  4      12          48           32        32
//	   ┌──────┬─────────┬────────────┬───────────┬─────────┐
//	   │ kind │ cluster │    host    │  session  │ check 0 │
//	   └──────┴─────────┴────────────┴───────────┴─────────┘
//
// in big endian. The scheme follows single-pass encryption in
// draft-ietf-quic-load-balancers, and adds authentication: a guessed ufrag
// passes the check bits with probability 2^-32, and is useless even then without
// its password, base64(HMAC-SHA256(password key, ufrag)[:24]).
//
// All keys come from the 32-byte secret of a keyring entry by HKDF-SHA256 (RFC
// 5869) with an empty salt and the labels "usher v1 ufrag block" (16 bytes),
// "usher v1 ice password" (32), "usher v1 store mac" (32) and "usher v1 trunk
// tag" (16). testdata/vectors.json holds frozen vectors.
//
// # Rotation
//
// Give every relay the new entry; then let transceivers mint with it; remove the
// old entry after the longest session plus the drain time. [Keyring.Replace] and
// [Keyring.WatchFile] do each step in a running process.
package ufrag
