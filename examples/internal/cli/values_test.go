package cli

import (
	"errors"
	"flag"
	"net/netip"
	"reflect"
	"testing"
)

func TestIngresses(t *testing.T) {
	addr := netip.MustParseAddrPort
	for _, tt := range []struct {
		name string
		in   []string
		want Ingresses // nil: an error
	}{
		{"plain", []string{"192.0.2.1:3478"}, Ingresses{{ID: 1, Addr: addr("192.0.2.1:3478")}}},
		{"every address", []string{":3478"}, Ingresses{{ID: 1, Addr: addr("0.0.0.0:3478")}}},
		{"by position", []string{"192.0.2.1:3478", "[2001:db8::1]:3478"}, Ingresses{
			{ID: 1, Addr: addr("192.0.2.1:3478")}, {ID: 2, Addr: addr("[2001:db8::1]:3478")},
		}},
		{"all parts", []string{"id=7,addr=10.0.0.5:3478,advertise=203.0.113.10:443"}, Ingresses{
			{ID: 7, Addr: addr("10.0.0.5:3478"), Advertise: addr("203.0.113.10:443")},
		}},
		{"advertise alone", []string{"id=2,advertise=203.0.113.10:443"}, Ingresses{{ID: 2, Advertise: addr("203.0.113.10:443")}}},
		{"no address", []string{"id=2"}, nil},
		{"id 0", []string{"id=0,addr=192.0.2.1:3478"}, nil},
		{"id too large", []string{"id=65536,addr=192.0.2.1:3478"}, nil},
		{"name", []string{"relay.example:3478"}, nil},
		{"no port", []string{"192.0.2.1"}, nil},
		{"unknown part", []string{"host=192.0.2.1:3478"}, nil},
		{"empty", []string{""}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got Ingresses
			var err error
			for _, text := range tt.in {
				if err = got.Set(text); err != nil {
					break
				}
			}
			if tt.want == nil {
				if err == nil {
					t.Errorf("accepted as %+v", got)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestPrefixes(t *testing.T) {
	var p Prefixes
	for _, text := range []string{"10.0.0.0/8,192.0.2.1", "2001:db8::/32"} {
		if err := p.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.String(); got != "10.0.0.0/8,192.0.2.1/32,2001:db8::/32" {
		t.Errorf("got %s", got)
	}
	for _, text := range []string{"", "10.0.0.0/33", "host.example", "10.0.0.0/8,", "10.0.0.0/8 10.1.0.0/16"} {
		if err := new(Prefixes).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestAddrPorts(t *testing.T) {
	var a AddrPorts
	for _, text := range []string{"10.0.0.5:9000,10.0.0.6:9000", "[2001:db8::1]:9000"} {
		if err := a.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.String(); got != "10.0.0.5:9000,10.0.0.6:9000,[2001:db8::1]:9000" {
		t.Errorf("got %s", got)
	}
	for _, text := range []string{"", "10.0.0.5", ":9000", "host.example:9000", "10.0.0.5:9000,"} {
		if err := new(AddrPorts).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestAdvertise(t *testing.T) {
	listen := netip.MustParseAddrPort("10.0.0.5:3478")
	for _, tt := range []struct{ flag, want string }{
		{"203.0.113.10", "203.0.113.10:3478"},
		{"203.0.113.10:443", "203.0.113.10:443"},
		{"2001:db8::1", "[2001:db8::1]:3478"},
	} {
		var a Advertise
		if err := a.Set(tt.flag); err != nil {
			t.Fatal(err)
		}
		if got := a.For(listen).String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.flag, got, tt.want)
		}
	}
	if got := (Advertise{}).For(listen); got.IsValid() {
		t.Errorf("without the flag: got %v, want the zero value", got)
	}
	if err := new(Advertise).Set("public.example"); err == nil {
		t.Error("a name was accepted")
	}
}

// TestParseKeepsErrorsShort checks that a wrong flag does not print every flag.
func TestParseKeepsErrorsShort(t *testing.T) {
	flags := NewFlags("test", "")
	printed := false
	flags.Usage = func() { printed = true }
	if err := ParseDaemon(flags, []string{"-nonsense"}); err == nil || printed {
		t.Errorf("error %v, usage printed: %v", err, printed)
	}
	flags.Usage = func() { printed = true }
	if err := ParseDaemon(flags, []string{"-help"}); !errors.Is(err, flag.ErrHelp) || !printed {
		t.Errorf("error %v, usage printed: %v", err, printed)
	}
}
