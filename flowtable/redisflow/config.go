package redisflow

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/usher-rtc/usher/internal/config"
)

// ConfigError is returned for a bad configuration and names the field.
type ConfigError = config.Error

// Defaults of Config.
const (
	DefaultPrefix      = "usher:"
	DefaultDialTimeout = time.Second
	DefaultPoolSize    = 8
)

// Config says where the store is. Addrs is required; all other fields have
// defaults.
type Config struct {
	// Addrs are host:port of the Redis server; of the Sentinels, if MasterName is
	// set; of some of the nodes, if Cluster is.
	Addrs []string
	// MasterName is the name of the set that Sentinels watch.
	MasterName string
	// Cluster says that the nodes are a Redis Cluster.
	Cluster bool

	// Username and Password log in to the servers, SentinelUsername and
	// SentinelPassword to the Sentinels.
	Username, Password                 string
	SentinelUsername, SentinelPassword string
	// DB is the number of the database, without Cluster.
	DB int
	// TLS is used for all connections; nil means none.
	TLS *tls.Config

	// Prefix comes before all keys. "" means "usher:". Fleets that share a server
	// need different ones.
	Prefix string
	// DialTimeout limits connecting. 0 means 1 s. Reads and writes have the
	// deadlines of the relay.
	DialTimeout time.Duration
	// PoolSize is the most connections, for each node of a Cluster. 0 means 8; a
	// relay uses three at once.
	PoolSize int
}

func (c *Config) validate() error {
	switch {
	case len(c.Addrs) == 0:
		return config.Errorf("Addrs", "need at least one host:port")
	case c.Cluster && c.MasterName != "":
		return config.Errorf("MasterName", "Sentinels do not watch a Cluster")
	case !c.Cluster && c.MasterName == "" && len(c.Addrs) > 1:
		return config.Errorf("Addrs", "several addresses need Cluster or MasterName")
	case c.Cluster && c.DB != 0:
		return config.Errorf("DB", "a Cluster has only database 0")
	case c.DB < 0:
		return config.Errorf("DB", "negative")
	case c.DialTimeout < 0:
		return config.Errorf("DialTimeout", "negative")
	case c.PoolSize < 0:
		return config.Errorf("PoolSize", "negative")
	}
	for i, a := range c.Addrs {
		if a == "" {
			return config.Errorf(fmt.Sprintf("Addrs[%d]", i), "empty")
		}
	}
	return nil
}

// client makes a client that gives up when the caller's context does.
func (c *Config) client() redis.UniversalClient {
	o := &redis.UniversalOptions{
		Addrs: c.Addrs, MasterName: c.MasterName, IsClusterMode: c.Cluster, DB: c.DB,
		Username: c.Username, Password: c.Password,
		SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword,
		TLSConfig:   c.TLS,
		DialTimeout: c.DialTimeout, PoolSize: c.PoolSize,
		ContextTimeoutEnabled: true,
		// One retry covers a connection that the server has closed meanwhile. More
		// would use up the deadline of a question.
		MaxRetries: 1, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 8 * time.Millisecond,
		DialerRetries: 1,
		// Announcements of a vendor's cloud, which other servers answer with an error.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.PoolSize == 0 {
		o.PoolSize = DefaultPoolSize
	}
	return redis.NewUniversalClient(o)
}
