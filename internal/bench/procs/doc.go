// Package procs runs the programs of a fleet that is measured: it builds relayd
// and transceiverd, writes their key files, starts programs, keeps what they say
// with the time of each line, waits until they say that they are ready, and ends
// them, one by its process id. A command that wants a network of its own for all
// of them is run again inside one ([OwnNetwork]).
//
// It owns processes that it started and nothing else. What they are told is
// decided by who starts them; what their ends and their lines mean, too.
package procs
