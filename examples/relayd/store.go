package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/usher-rtc/usher/flowtable/redisflow"
)

// openStore opens the flow store of -redis.
func openStore(text string) (*redisflow.Store, error) {
	if path, ok := strings.CutPrefix(text, "@"); ok {
		// On the command line every user of the machine could read the password.
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("-redis: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	config, err := storeConfig(text)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	redisflow.LimitLog(slog.Default())
	store, err := redisflow.Open(config)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return store, nil
}

// storeConfig reads a URL like redis://user:password@host:6379/0, or with rediss
// for TLS. Its parameters are addr=HOST:PORT for each further server,
// cluster=true, master=NAME of what Sentinels watch, and prefix=TEXT of all keys.
// The errors never show the URL, which may have a password in it.
func storeConfig(text string) (redisflow.Config, error) {
	var c redisflow.Config
	u, err := url.Parse(text)
	if err != nil {
		return c, errors.New("not a URL such as redis://localhost:6379")
	}
	switch u.Scheme {
	case "redis":
	case "rediss":
		c.TLS = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	default:
		return c, errors.New("not a URL such as redis://localhost:6379: it must begin with redis:// or rediss://")
	}
	if u.Hostname() == "" {
		return c, errors.New("the URL has no host")
	}
	host := u.Host
	if u.Port() == "" {
		host = strings.TrimSuffix(host, ":") + ":6379"
	}
	c.Addrs = []string{host}
	if u.User != nil {
		c.Username = u.User.Username()
		c.Password, _ = u.User.Password()
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if c.DB, err = strconv.Atoi(db); err != nil {
			return c, fmt.Errorf("the database %q is not a number", db)
		}
	}
	parameters, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return c, errors.New("the URL's parameters are malformed")
	}
	for name, values := range parameters {
		value := values[len(values)-1]
		switch name {
		case "addr":
			c.Addrs = append(c.Addrs, values...)
		case "cluster":
			if c.Cluster, err = strconv.ParseBool(value); err != nil {
				return c, fmt.Errorf("cluster=%s is neither true nor false", value)
			}
		case "master":
			c.MasterName = value
		case "prefix":
			c.Prefix = value
		default:
			return c, fmt.Errorf("the URL's parameter %q is not one of addr, cluster, master and prefix", name)
		}
	}
	if c.TLS != nil && len(c.Addrs) > 1 {
		c.TLS.ServerName = "" // each server has its own
	}
	return c, nil
}
