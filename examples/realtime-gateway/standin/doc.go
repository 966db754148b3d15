// Package standin is a small server that speaks the Realtime events over
// WebSocket, to try and to test what stands in front of such a server without
// an account: it hears when somebody speaks (by loudness alone), answers with
// the speaker's own words or, where there are none, with a tone, and makes its
// answers faster than they are played, as real ones do.
//
// It owns the events and their order, and checks what clients may get wrong. It
// refuses to be more: there is no speech recognition, no model and no tool in
// it, and of audio formats it takes PCM at 24 kHz.
package standin
