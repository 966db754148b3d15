package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

// nginxConf: one worker per processor with a reuseport socket, no logs, the
// largest receive buffer, sessions that outlive the run, and room for a
// connection per client and its upstream socket.
const nginxConf = `load_module %[1]s;
user root;
daemon off;
worker_processes %[2]d;
worker_rlimit_nofile 65536;
pid %[3]s/nginx.pid;
error_log %[3]s/error.log crit;
events { worker_connections 16384; use epoll; multi_accept %[4]s; }
stream {
  access_log off;
  server {
    listen 127.0.0.1:%[5]d udp reuseport rcvbuf=4m sndbuf=4m;
    proxy_pass %[6]s;
    proxy_timeout 1h;
    proxy_connect_timeout 1h;
    proxy_buffer_size 2k;
  }
}
`

// nginxModules are the places where distributions put the stream module.
var nginxModules = []string{
	"/usr/lib/nginx/modules/ngx_stream_module.so",
	"/usr/lib64/nginx/modules/ngx_stream_module.so",
	"/usr/share/nginx/modules/ngx_stream_module.so",
}

// nginx is the stream proxy. It has a socket per client towards the upstream,
// and answers go to the address of that socket.
type nginx struct {
	env         *Env
	multiAccept string
	proc        *load.Process
	ingress     load.Endpoint
	back        []load.Endpoint // per client
}

// NewNginx returns nginx with multi_accept off (the default) or on.
func NewNginx(multiAccept bool) Peer {
	if multiAccept {
		return &nginx{multiAccept: "on"}
	}
	return &nginx{multiAccept: "off"}
}

func (p *nginx) Name() string {
	if p.multiAccept == "on" {
		return "nginx-multi"
	}
	return "nginx"
}

func (p *nginx) Process() *load.Process { return p.proc }
func (p *nginx) Stop() error            { return p.proc.Stop() }

func (p *nginx) Start(env *Env) error {
	p.env = env
	module := ""
	for _, m := range nginxModules {
		if _, err := os.Stat(m); err == nil {
			module = m
		}
	}
	if module == "" {
		return fmt.Errorf("no stream module in %s", strings.Join(nginxModules, ", "))
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	p.ingress = loopback(port)
	dir := filepath.Join(env.Dir, p.Name())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(nginxConf, module, env.Workers, dir, p.multiAccept, port, env.HostAddr(0))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	p.proc, err = load.StartProcess(env.CPUs, "nginx", "-p", dir, "-c", conf, "-e", filepath.Join(dir, "error.log"))
	if err != nil {
		return err
	}
	p.proc.Discard()
	return waitListening(port, 5*time.Second)
}

// waitListening waits until somebody on this machine has bound the UDP port.
func waitListening(port uint16, limit time.Duration) error {
	want := fmt.Sprintf(":%04X ", port)
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile("/proc/net/udp")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1]+" ", want) {
				return nil
			}
		}
	}
	return fmt.Errorf("nobody listens on UDP port %d", port)
}

func (p *nginx) Establish(n int) error {
	for len(p.back) < n {
		p.back = append(p.back, load.Endpoint{})
	}
	return checkBothWays(p.env, p, n, func(c int, from load.Endpoint) { p.back[c] = from })
}

func (p *nginx) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	return copy(buf, payload), p.ingress
}

func (p *nginx) Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	return copy(buf, payloads[0]), 1, p.env.HostAddr(0), p.back[clients[0]]
}

func (p *nginx) SplitUp(_ int, _ load.Endpoint, d []byte, out [][]byte) [][]byte {
	return append(out, d)
}
func (p *nginx) SplitDown(d []byte, out [][]byte) [][]byte { return append(out, d) }
