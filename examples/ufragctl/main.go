// Ufragctl makes keys for usher, and makes and reads routed ufrags.
//
//	ufragctl keygen [-id A] > keys.txt
//	ufragctl mint -keys keys.txt -cluster 1 -host 10.0.0.5:9000
//	ufragctl decode -keys keys.txt UFRAG    (or a STUN USERNAME, or - for an SDP on stdin)
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/ufrag"
)

const usage = `usage: ufragctl keygen [-id A] > keys.txt
       ufragctl mint -keys FILE -cluster N -host IP:PORT
       ufragctl decode -keys FILE UFRAG|USERNAME|-
Each lists its flags with -help.
`

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
	case "-h", "-help", "--help", "help":
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
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
