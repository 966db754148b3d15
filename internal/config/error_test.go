package config

import (
	"errors"
	"testing"
)

func TestErrorSaysWhoseFieldItIs(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{nil, "Codec: required"},
		{[]string{"relay.Config"}, "relay.Config.Codec: required"},
		{[]string{"relay.Config", "outer.Config"}, "relay.Config.Codec: required"}, // the first to know
	} {
		err := Errorf("Codec", "required")
		for _, name := range tt.names {
			err = In(name, err)
		}
		if err.Error() != tt.want {
			t.Errorf("%q, want %q", err, tt.want)
		}
	}
	if other := errors.New("no field"); !errors.Is(In("relay.Config", other), other) {
		t.Error("another error is changed")
	}
	if In("relay.Config", nil) != nil {
		t.Error("an error out of nothing")
	}
}
