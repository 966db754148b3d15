// Package pcm gives the bridge PCM, for services that want samples and not
// Opus packets: a bridge.Codec on a pure Go port of libopus, so that neither a
// C compiler nor a shared library is needed.
//
// It owns the settings of encoder and decoder, and [Loudness]. It refuses everything but mono
// at 16 and 24 kHz, which is what speech services use.
package pcm
