// Package browser drives real browsers, headless, for the end-to-end tests.
//
// It owns the driver (a Node program on puppeteer-core that speaks JSON lines),
// its installation from the locked list of packages, and the flags and
// preferences that make a browser usable without a screen and a microphone. It
// knows nothing about WebRTC or about this project's servers.
package browser
