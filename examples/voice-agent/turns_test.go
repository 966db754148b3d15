package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const frame = 20 * time.Millisecond

// piece is sound of one loudness.
type piece struct {
	loudness  float64
	ms        int
	answering bool
}

// listen returns the events and when they came, in milliseconds.
func listen(t *turns, pieces []piece) (got []string) {
	at := 0
	for _, p := range pieces {
		for range p.ms / 20 {
			at += 20
			switch t.push(p.loudness, frame, p.answering) {
			case turnStarted:
				got = append(got, fmt.Sprint("start ", at))
			case turnEnded:
				got = append(got, fmt.Sprint("end ", at))
			}
		}
	}
	return got
}

// repeat is sound that goes round and round.
func repeat(n int, pieces ...piece) (all []piece) {
	for range n {
		all = append(all, pieces...)
	}
	return all
}

func TestTurns(t *testing.T) {
	room, voice := -65.0, -30.0
	for _, tt := range []struct {
		name   string
		pieces []piece
		want   []string
	}{
		{"silence", []piece{{-96, 5000, false}}, nil},
		{"a quiet room", []piece{{room, 5000, false}}, nil},
		{"a sentence", []piece{{room, 1000, false}, {voice, 1000, false}, {room, 1000, false}}, []string{"start 1080", "end 2600"}},
		{"at once", []piece{{voice, 1000, false}, {room, 1000, false}}, []string{"start 80", "end 1600"}},
		{"a click", []piece{{room, 1000, false}, {voice, 60, false}, {room, 1000, false}}, nil},
		{"clicks", repeat(10, piece{voice, 60, false}, piece{room, 100, false}), nil},
		{"syllables", repeat(3, piece{voice, 60, false}, piece{room, 60, false}), []string{"start 140"}},
		{"a pause", []piece{{voice, 1000, false}, {room, 580, false}, {voice, 1000, false}, {room, 1000, false}}, []string{"start 80", "end 3180"}},
		{"two turns", []piece{{voice, 1000, false}, {room, 1000, false}, {voice, 1000, false}, {room, 1000, false}},
			[]string{"start 80", "end 1600", "start 2080", "end 3600"}},
		{"a voice that fades", []piece{{room, 5000, false}, {quiet + 1, 400, false}, {quiet - hysteresis + 1, 800, false}, {room, 800, false}},
			[]string{"start 5080", "end 6800"}},
		{"too soft to begin", []piece{{room, 5000, false}, {quiet - 1, 2000, false}}, nil},
		{"a loud room is learnt", []piece{{-40, 20000, false}}, []string{"start 80", "end 4580"}},
		{"a voice in a loud room", []piece{{-40, 10000, false}, {-20, 1000, false}, {-40, 1000, false}},
			[]string{"start 80", "end 4580", "start 10080", "end 11600"}},
		{"a loud room is forgotten", []piece{{-40, 10000, false}, {room, 500, false}, {-40, 1000, false}},
			[]string{"start 80", "end 4580", "start 10580"}},
		{"half a minute of speech is one turn", append(repeat(10, piece{voice, 2800, false}, piece{room, 200, false}), piece{room, 1000, false}),
			[]string{"start 80", "end 30400"}},
		{"barge-in takes longer", []piece{{room, 1000, true}, {voice, 180, true}, {room, 1000, true}, {voice, 1000, true}, {room, 1000, true}},
			[]string{"start 2380", "end 3780"}},
		{"what is left of the agent's own voice", []piece{{room, 1000, true}, {quiet + overAnswer - 1, 5000, true}}, nil},
		{"the same without an answer", []piece{{room, 1000, false}, {quiet + overAnswer - 1, 1000, false}}, []string{"start 1080"}},
		{"an answer that ends in mid-word", []piece{{room, 1000, true}, {voice, 100, true}, {voice, 100, false}}, []string{"start 1120"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := listen(new(turns), tt.pieces); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestATurnKnowsHowMuchWasSaid(t *testing.T) {
	var tu turns
	listen(&tu, []piece{{-30, 400, false}, {-70, 200, false}, {-30, 600, false}, {-70, 600, false}})
	if tu.active || tu.said != time.Second || tu.pause != hangOver {
		t.Errorf("%+v", tu)
	}
	listen(&tu, []piece{{-30, 500, false}, {-70, 100, false}})
	if tu.end(); tu.active || tu.said != 500*time.Millisecond || tu.pause != 100*time.Millisecond {
		t.Errorf("cut short: %+v", tu)
	}
	if tu.end(); tu.said != 0 || tu.pause != 0 {
		t.Errorf("without a turn: %+v", tu)
	}
}

// TestALongSilenceIsOnePiece: a client that sends nothing leaves a gap, which
// comes as one piece.
func TestALongSilenceIsOnePiece(t *testing.T) {
	var tu turns
	listen(&tu, []piece{{-30, 1000, false}})
	if got := tu.push(silent, time.Minute, false); got != turnEnded {
		t.Errorf("%v, want the end of the turn", got)
	}
	if got := listen(&tu, []piece{{-30, 80, false}}); len(got) != 1 {
		t.Errorf("%v after it, want the start of another", got)
	}
}

// TestTurnsAlternate: whatever is heard, starts and ends take turns, and no
// turn is shorter than what makes one.
func TestTurnsAlternate(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var tu turns
		open, n := false, 0
		var began time.Duration
		for at := time.Duration(0); at < 2*time.Minute; {
			loud, d := -100+110*random.Float64(), time.Duration(1+random.IntN(25))*frame
			for range int(d / frame) {
				at += frame
				switch tu.push(loud, frame, random.IntN(2) == 0) {
				case turnStarted:
					if open {
						t.Fatalf("a second start at %v", at)
					}
					open, began, n = true, at, n+1
				case turnEnded:
					if !open || at-began < hangOver {
						t.Fatalf("an end at %v after %v", at, at-began)
					}
					open = false
				}
				if open != tu.active {
					t.Fatalf("active is %v at %v", tu.active, at)
				}
			}
		}
		if n == 0 {
			t.Fatal("no turn in two minutes of noise")
		}
	}
}
