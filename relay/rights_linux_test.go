package relay

import "testing"

// TestHandoverIsForOneUser checks the rule for the users of the two processes.
func TestHandoverIsForOneUser(t *testing.T) {
	for _, tt := range []struct {
		peer, own int
		ok        bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 0, false}, {1000, 1001, false}} {
		if err := mayHandOver(tt.peer, tt.own); (err == nil) != tt.ok {
			t.Errorf("a process of user %d and one of user %d: %v", tt.peer, tt.own, err)
		}
	}
}
