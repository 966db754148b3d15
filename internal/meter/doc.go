// Package meter is an application for drills: each side of a call sends
// numbered audio at a steady pace and keeps the times at which it sent and at
// which the other side's arrived, so that the two records together say which
// packets were lost and how long there was silence.
//
// It owns the records ([Log]), the pacing ([Pacer]), the transceiver's side of
// the application ([App]) and the report that it serves. It judges nothing: what
// may be lost, and how long a silence may be, is decided by who reads the report.
//
// Times are those of the machine's monotonic clock, which all processes on it
// share. They mean nothing on another machine, or after a restart of this one.
package meter
