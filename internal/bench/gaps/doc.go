// Package gaps says what calls noticed of an event: how long there was silence,
// which packets were lost although something was there to forward them, and how
// long packets took, from the records that both sides of a call keep (the meter
// package). A [Verdict] is the line that is printed about it.
//
// It owns the arithmetic. What is wanted of an event is for the commands to say.
package gaps
