package gaps

import (
	"fmt"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/stats"
)

// Verdict is what calls noticed of an event.
type Verdict struct {
	Name     string
	Spell    Spell
	Gaps     []time.Duration // of each call, the longer one of its directions
	Lost     int             // packets of all calls
	Notes    []string
	Problems []string
}

// String is the line that is printed: the name, the median, 99 % and greatest of
// the gaps in milliseconds, the losses and the notes.
func (v *Verdict) String() string {
	ms := func(q float64) float64 { return stats.Millis(stats.Quantile(v.Gaps, q)) }
	return fmt.Sprintf("drill %s gap_ms %.0f %.0f %.0f lost %d (%s)", v.Name, ms(0.5), ms(0.99), ms(1), v.Lost, strings.Join(v.Notes, "; "))
}

// Note adds something to the line.
func (v *Verdict) Note(format string, args ...any) {
	v.Notes = append(v.Notes, fmt.Sprintf(format, args...))
}

// Fail adds a problem.
func (v *Verdict) Fail(format string, args ...any) {
	v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
}
