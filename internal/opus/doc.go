// Package opus reads what an Opus packet says about itself (RFC 6716 section
// 3): how long it is, whether it carries speech at all. It owns the table of
// contents byte and the packets of silence that need no encoder. It neither
// encodes nor decodes sound.
package opus
