// Package parts is about the parts of a machine that tests and measurements need
// and that a machine may lack: programs, network namespaces, processors. A test
// that lacks one is skipped and says what to install; where USHER_REQUIRE_PARTS is
// set, as in CI, it fails.
//
// It owns that rule and the words for it. It installs nothing.
package parts
