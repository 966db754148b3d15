package peers

import (
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v5"
)

// servePionTURN runs pion/turn until it is told to end.
func servePionTURN(listen netip.AddrPort) error {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(listen))
	if err != nil {
		return err
	}
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		return err
	}
	key := turn.GenerateAuthKey(turnUser, turnRealm, turnPassword)
	logs := logging.NewDefaultLoggerFactory()
	logs.DefaultLogLevel = logging.LogLevelDisabled
	server, err := turn.NewServer(turn.ServerConfig{
		Realm:         turnRealm,
		LoggerFactory: logs,
		AuthHandler: func(a *turn.RequestAttributes) (string, []byte, bool) {
			return a.Username, key, a.Username == turnUser
		},
		ChannelBindTimeout: 2 * time.Hour,
		PermissionTimeout:  2 * time.Hour,
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: conn,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: net.IPv4(127, 0, 0, 1), Address: "127.0.0.1",
			},
		}},
	})
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	return server.Close()
}
