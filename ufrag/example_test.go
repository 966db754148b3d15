package ufrag_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// exampleKeys stands for the keys of a fleet, which would come from
// [ufrag.ReadKeyFile]. These are known to everybody.
func exampleKeys() *ufrag.Keyring {
	keys, err := ufrag.NewKeyring('A', exampleKey('A'))
	if err != nil {
		log.Fatal(err)
	}
	return keys
}

func exampleKey(id byte) ufrag.Key {
	k := ufrag.Key{ID: id}
	for i := range k.Secret {
		k.Secret[i] = id ^ byte(i)
	}
	return k
}

func tempFile(text string) (path string, remove func()) {
	dir, err := os.MkdirTemp("", "ufrag")
	if err != nil {
		log.Fatal(err)
	}
	path = filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}
	return path, func() { _ = os.RemoveAll(dir) }
}

// A transceiver mints, a relay routes; both have the same keys and nothing else in
// common.
func Example() {
	keys := exampleKeys()

	// In the transceiver:
	host, err := ufrag.IPv4Route(1, netip.MustParseAddrPort("10.0.0.7:3478"), 0)
	if err != nil {
		log.Fatal(err)
	}
	minter := ufrag.NewMinter(ufrag.NewCodec(keys), host)
	name, password, _, err := minter.Mint() // goes into the SDP answer
	if err != nil {
		log.Fatal(err)
	}

	// In the relay, when the first STUN check comes in:
	relay := ufrag.NewCodec(keys)
	route, err := relay.Decode([]byte(name))
	if err != nil {
		log.Fatal(err)
	}
	resolver := ufrag.Allow([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, ufrag.EmbeddedIPv4{})
	upstream, ok := resolver.Resolve(route)
	expected, err := relay.AppendPassword(nil, []byte(name))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(upstream, ok, string(expected) == password)
	// Output: 10.0.0.7:3478 true true
}

func ExampleRoute() {
	a, err := ufrag.IPv4Route(3, netip.MustParseAddrPort("10.0.0.7:3478"), 42)
	if err != nil {
		log.Fatal(err)
	}
	b := a
	b.Session = 43
	fmt.Println(a)
	fmt.Println(a == b, a.SameHost(b))
	fmt.Printf("% x\n", a.AppendBinary(nil))
	// Output:
	// cluster 3 host 10.0.0.7:3478 session 42
	// false true
	// 10 03 0a 00 00 07 0d 96 00 00 00 2a
}

func ExampleKind() {
	v6, err := ufrag.DirectoryRoute(3, 17, 42) // an IPv6 address does not fit
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v6.Kind)
	// Output: directory
}

// tenantCodec puts users' own bookkeeping around the standard codec.
type tenantCodec struct {
	ufrag.Codec
	cluster uint16
}

func (c tenantCodec) Decode(b []byte) (ufrag.Route, error) {
	r, err := c.Codec.Decode(b)
	if err == nil && r.Cluster != c.cluster {
		return ufrag.Route{}, ufrag.ErrKind
	}
	return r, err
}

func ExampleCodec() {
	var codec ufrag.Codec = tenantCodec{ufrag.NewCodec(exampleKeys()), 3}
	u, err := codec.Encode(ufrag.Route{Kind: ufrag.KindDirectory, Cluster: 4, Host: 17})
	if err != nil {
		log.Fatal(err)
	}
	_, err = codec.Decode([]byte(u))
	fmt.Println(err)
	// Output: ufrag: unknown kind of route
}

func ExampleBlockCodec() {
	codec := ufrag.NewCodec(exampleKeys())
	u, err := codec.Encode(ufrag.Route{Kind: ufrag.KindDirectory, Cluster: 3, Host: 17, Session: 42})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(u), u[:1])

	route, err := codec.Decode([]byte(u))
	fmt.Println(route, err)

	_, err = codec.Decode([]byte(u[:4]))
	fmt.Println(err, errors.Is(err, ufrag.ErrLength))
	// Output:
	// 23 A
	// cluster 3 host #17 session 42 <nil>
	// ufrag: wrong length true
}

func ExamplePlain() {
	codec := ufrag.NewPlain(exampleKeys())
	route, err := ufrag.IPv4Route(3, netip.MustParseAddrPort("10.0.0.7:3478"), 42)
	if err != nil {
		log.Fatal(err)
	}
	u, err := codec.Encode(route)
	fmt.Println(u, err)
	// Output: A10030a0000070d960000002a <nil>
}

func ExampleKey() {
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v %+v %x\n", key, key, key) // never the secret
	text, err := ufrag.FormatKeyFile('A', key)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Count(string(text), "\n"), "lines for the file")
	// Output:
	// key 'A' key 'A' key 'A'
	// 2 lines for the file
}

// The steps of a rotation as a transceiver sees them.
func ExampleKeyring() {
	a, b := exampleKey('A'), exampleKey('B')
	keys, err := ufrag.NewKeyring('A', a)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(keys)
	if err := keys.Replace('A', a, b); err != nil { // once every relay has both
		log.Fatal(err)
	}
	fmt.Println(keys)
	if err := keys.Replace('B', a, b); err != nil { // mint with the new one
		log.Fatal(err)
	}
	fmt.Println(keys)
	if err := keys.Replace('B', b); err != nil { // after the longest session
		log.Fatal(err)
	}
	fmt.Println(keys)
	// Output:
	// keyring A, mint A
	// keyring AB, mint A
	// keyring AB, mint B
	// keyring B, mint B
}

func ExampleConfigError() {
	_, err := ufrag.NewKeyring('A', exampleKey('A'), ufrag.Key{ID: 'B'})
	var ce *ufrag.ConfigError
	if errors.As(err, &ce) {
		fmt.Println(ce.Field)
	}
	fmt.Println(err)
	// Output:
	// Keys[1].Secret
	// Keys[1].Secret: is all zeros; key 'B' needs 32 random bytes
}

func ExampleFileError() {
	_, _, err := ufrag.ParseKeyFile([]byte("# keys\nA AAECAw== mint\n"))
	var fe *ufrag.FileError
	if errors.As(err, &fe) {
		fmt.Println(fe.Line)
	}
	fmt.Println(err)
	// Output:
	// 2
	// input:2: the secret of key 'A' has 4 bytes, not 32
}

// A keyring follows a file; a signal handler may call Reload to do it at once.
func ExampleWatcher() {
	text, err := ufrag.FormatKeyFile('A', exampleKey('A'), exampleKey('B'))
	if err != nil {
		log.Fatal(err)
	}
	path, remove := tempFile(string(text))
	defer remove()

	keys := new(ufrag.Keyring)
	w, err := keys.WatchFile(ufrag.WatchConfig{Path: path})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	fmt.Println(keys, w.Reload())
	// Output: keyring AB, mint A <nil>
}

func ExampleWatchConfig() {
	path, remove := tempFile("17 10.0.0.7:3478\n")
	defer remove()
	hosts, err := ufrag.NewFile(ufrag.WatchConfig{
		Path:     path,
		Interval: 2 * time.Second,
		OnReload: func(err error) { fmt.Println("reload:", err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()
	fmt.Println(hosts.Len())
	// Output: 1
}

func ExampleMinter() {
	m := ufrag.NewMinter(ufrag.NewCodec(exampleKeys()), ufrag.Route{Kind: ufrag.KindDirectory, Host: 17})
	name, password, route, err := m.Mint()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(name), len(password), m.Live())
	m.Release(route.Session)
	fmt.Println(m.Live())
	// Output:
	// 23 32 1
	// 0
}

// byRack is a resolver for fleets whose ids are addresses by a rule.
type byRack struct{}

func (byRack) Resolve(r ufrag.Route) (netip.AddrPort, bool) {
	if r.Kind != ufrag.KindDirectory || r.Host >= 1<<16 {
		return netip.AddrPort{}, false
	}
	addr := netip.AddrFrom4([4]byte{10, 0, byte(r.Host >> 8), byte(r.Host)})
	return netip.AddrPortFrom(addr, 3478), true
}

func ExampleResolver() {
	var r ufrag.Resolver = ufrag.Allow([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, byRack{})
	fmt.Println(r.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 0x0207}))
	// Output: 10.0.2.7:3478 true
}

func ExampleEmbeddedIPv4() {
	route, err := ufrag.IPv4Route(1, netip.MustParseAddrPort("10.0.0.7:3478"), 42)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ufrag.EmbeddedIPv4{}.Resolve(route))
	// Output: 10.0.0.7:3478 true
}

func ExampleStatic() {
	hosts, err := ufrag.NewStatic(map[uint64]netip.AddrPort{
		17: netip.MustParseAddrPort("[2001:db8::7]:3478"),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(hosts.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 17}))
	// Output: [2001:db8::7]:3478 true
}

func ExampleChain() {
	override, err := ufrag.NewStatic(map[uint64]netip.AddrPort{
		17: netip.MustParseAddrPort("10.0.0.99:3478"),
	})
	if err != nil {
		log.Fatal(err)
	}
	r := ufrag.Chain{override, byRack{}}
	fmt.Println(r.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 17}))
	fmt.Println(r.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 18}))
	// Output:
	// 10.0.0.99:3478 true
	// 10.0.0.18:3478 true
}

func ExampleAllowList() {
	a := ufrag.Allow([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, ufrag.EmbeddedIPv4{})
	for _, s := range []string{"10.0.0.7:3478", "127.0.0.1:3478"} {
		route, err := ufrag.IPv4Route(1, netip.MustParseAddrPort(s), 42)
		if err != nil {
			log.Fatal(err)
		}
		_, ok := a.Resolve(route)
		fmt.Println(s, ok)
	}
	fmt.Println(a.Contains(netip.MustParseAddr("::ffff:10.0.0.7")))
	// Output:
	// 10.0.0.7:3478 true
	// 127.0.0.1:3478 false
	// true
}

func ExampleFile() {
	path, remove := tempFile("# transceivers\n17 10.0.0.7:3478\n18 [2001:db8::7]:3478\n")
	defer remove()
	hosts, err := ufrag.NewFile(ufrag.WatchConfig{Path: path})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()
	fmt.Println(hosts.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 18}))
	// Output: [2001:db8::7]:3478 true
}

func ExampleDNS() {
	looked := make(chan string, 1)
	hosts, err := ufrag.NewDNS(ufrag.DNSConfig{
		Pattern: "host-%d.transceivers.example",
		Port:    3478,
		// Leave Lookup out to ask DNS.
		Lookup: func(_ context.Context, _, name string) ([]netip.Addr, error) {
			looked <- name
			return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()
	_, ok := hosts.Resolve(ufrag.Route{Kind: ufrag.KindDirectory, Host: 17})
	fmt.Println(ok) // not yet
	fmt.Println(<-looked)
	// Output:
	// false
	// host-17.transceivers.example.
}

func ExampleDNSConfig() {
	_, err := ufrag.NewDNS(ufrag.DNSConfig{Pattern: "transceivers.example", Port: 3478})
	fmt.Println(err)
	// Output: ufrag.DNSConfig.Pattern: "transceivers.example" must have exactly one %d and no other %
}

func ExampleDNSStats() {
	hosts, err := ufrag.NewDNS(ufrag.DNSConfig{
		Pattern: "host-%d.transceivers.example",
		Port:    3478,
		Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()
	s := hosts.Stats()
	fmt.Println(s.Hosts, s.Negative, s.Refused)
	// Output: 0 0 0
}

func ExampleShort() {
	fmt.Println(ufrag.Short("A7n42DGM5Tflk9n8mt7Fhc7"))
	// Output: A7n42D…
}
