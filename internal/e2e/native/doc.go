// Package native makes calls with WebRTC clients for Node.js that are no browsers
// and not Pion: werift (TypeScript), libdatachannel and libwebrtc. It owns the
// installation of their packages; the deployment that they call is the test's.
package native
