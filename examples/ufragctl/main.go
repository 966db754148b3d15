// Ufragctl makes keys for usher, and makes and reads routed ufrags.
//
//	ufragctl keygen [-id A] > keys.txt
//	ufragctl mint -keys keys.txt -cluster 1 -host 10.0.0.5:9000
//	ufragctl decode -keys keys.txt UFRAG    (or a STUN USERNAME, or - for an SDP on stdin)
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/ufrag"
)

func main() { cli.Main("ufragctl", run) }

func run(_ context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say what to do: keygen, mint or decode")
	}
	switch args[0] {
	case "keygen":
		return keygen(args[1:])
	case "mint":
		return mint(args[1:])
	case "decode":
		return decode(args[1:])
	}
	return fmt.Errorf("%q is not one of keygen, mint and decode", args[0])
}

func keygen(args []string) error {
	flags := cli.NewFlags("ufragctl keygen", "[-id A]")
	id := flags.String("id", "A", "the key's `id`, a letter or digit")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if len(*id) != 1 {
		return fmt.Errorf("-id: %q is not one letter or digit", *id)
	}
	key, err := ufrag.GenerateKey((*id)[0])
	if err != nil {
		return err
	}
	text, err := ufrag.FormatKeyFile(key.ID, key)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

func mint(args []string) error {
	flags := cli.NewFlags("ufragctl mint", "-keys FILE -cluster N -host IP:PORT")
	file := flags.String("keys", "", "key `file`")
	cluster := flags.Uint("cluster", 0, "cluster `number`, 0 to 4095")
	var host cli.AddrPort
	flags.Var(&host, "host", "the transceiver's trunk `address`")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	codec, err := codecFrom(*file)
	if err != nil {
		return err
	}
	if !netip.AddrPort(host).IsValid() {
		return errors.New("-host is required: the transceiver's trunk address, 10.0.0.5:9000 for example")
	}
	if *cluster > 4095 {
		return fmt.Errorf("-cluster: %d is outside 0 to 4095", *cluster)
	}
	route, err := ufrag.IPv4Route(uint16(*cluster), netip.AddrPort(host), 0)
	if err != nil {
		return fmt.Errorf("-host: %w", err)
	}
	text, password, minted, err := ufrag.NewMinter(codec, route).Mint()
	if err != nil {
		return err
	}
	fmt.Printf("ufrag     %s\npassword  %s\nsession   %d\n", text, password, minted.Session)
	return nil
}

func decode(args []string) error {
	flags := cli.NewFlags("ufragctl decode", "-keys FILE UFRAG|USERNAME|-")
	file := flags.String("keys", "", "key `file`")
	if err := cli.Parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("give one ufrag, one USERNAME, or - to read an SDP on stdin")
	}
	codec, err := codecFrom(*file)
	if err != nil {
		return err
	}
	ufrags := []string{flags.Arg(0)}
	if flags.Arg(0) == "-" {
		if ufrags, err = fromSDP(os.Stdin); err != nil {
			return err
		}
	}
	for i, text := range ufrags {
		text, _, _ = strings.Cut(text, ":") // a USERNAME is server:client
		route, err := codec.Decode([]byte(text))
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		host := fmt.Sprintf("directory id %d", route.Host)
		if addr, ok := route.AddrPort(); ok {
			host = addr.String()
		}
		if i > 0 {
			fmt.Println()
		}
		fmt.Printf("ufrag    %s\nkey id   %c\ncluster  %d\nhost     %s\nsession  %d\n", text, text[0], route.Cluster, host, route.Session)
	}
	return nil
}

// fromSDP returns the ufrags of a session description, each once. A bundled
// description repeats one in every section.
func fromSDP(r io.Reader) (ufrags []string, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		text, found := strings.CutPrefix(strings.TrimSpace(lines.Text()), "a=ice-ufrag:")
		if found && !slices.Contains(ufrags, text) {
			ufrags = append(ufrags, text)
		}
	}
	if lines.Err() == nil && ufrags == nil {
		return nil, errors.New("no a=ice-ufrag line in the SDP")
	}
	return ufrags, lines.Err()
}

func codecFrom(path string) (*ufrag.BlockCodec, error) {
	if path == "" {
		return nil, errors.New("-keys is required: a key file, made with \"ufragctl keygen\"")
	}
	keys, err := ufrag.ReadKeyFile(path)
	if err != nil {
		return nil, err
	}
	return ufrag.NewCodec(keys), nil
}
