package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/usher-rtc/usher/examples/internal/cli"
)

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
