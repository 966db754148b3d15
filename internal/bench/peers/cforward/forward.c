// A UDP forwarder with recvmmsg, sendmmsg and epoll, as a yardstick: what the
// machine allows to a relay that sends one datagram for each it gets. Packets
// of clients go to one upstream in a frame of 24 + 12 bytes; frames from the
// upstream go to the client they name, if it is known.
//
// usage: forward UPSTREAM-IP UPSTREAM-PORT
// It prints the addresses of its two sockets and serves until it is ended.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 32
#define SLOT 2048
#define HEADER 24
#define FRAME 12
#define TABLE 65536 // a power of two, several times the number of clients

struct flow {
	uint32_t ip; // network order; 0 is a free entry
	uint16_t port;
	uint32_t last;
	uint64_t packets;
};

static struct flow table[TABLE];
static unsigned flows;

static struct flow *find(uint32_t ip, uint16_t port, int make)
{
	uint32_t h = (ip * 2654435761u) ^ (port * 40503u);
	for (unsigned i = (h >> 8) & (TABLE - 1);; i = (i + 1) & (TABLE - 1)) {
		struct flow *f = &table[i];
		if (f->ip == ip && f->port == port)
			return f;
		if (f->ip == 0) {
			if (!make || flows >= TABLE / 2)
				return NULL;
			flows++;
			f->ip = ip;
			f->port = port;
			return f;
		}
	}
}

static int open_socket(struct sockaddr_in *sa)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	int size = 4 << 20;
	socklen_t len = sizeof *sa;
	memset(sa, 0, sizeof *sa);
	sa->sin_family = AF_INET;
	sa->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) < 0 ||
	    bind(fd, (struct sockaddr *)sa, sizeof *sa) < 0 || getsockname(fd, (struct sockaddr *)sa, &len) < 0) {
		perror("socket");
		exit(1);
	}
	return fd;
}

static struct mmsghdr in[BATCH], out[BATCH];
static struct iovec in_iov[BATCH], out_iov[BATCH];
static struct sockaddr_in from[BATCH], to[BATCH];
// Datagrams are received behind room for a header, so that one buffer each is sent.
static unsigned char data[BATCH][HEADER + FRAME + SLOT];

static int receive(int fd)
{
	for (int i = 0; i < BATCH; i++)
		in[i].msg_hdr.msg_namelen = sizeof from[i];
	return recvmmsg(fd, in, BATCH, MSG_DONTWAIT, NULL);
}

static void send_all(int fd, int n)
{
	for (int off = 0; off < n;) {
		int k = sendmmsg(fd, out + off, n - off, MSG_DONTWAIT);
		off += k > 0 ? k : 1; // a packet that the kernel refuses is lost
	}
}

static void uplink(int ingress, int trunk, const struct sockaddr_in *upstream)
{
	int n = receive(ingress), m = 0;
	uint32_t now = n > 0 ? (uint32_t)time(NULL) : 0;
	for (int i = 0; i < n; i++) {
		struct flow *f = find(from[i].sin_addr.s_addr, from[i].sin_port, 1);
		unsigned len = in[i].msg_len;
		unsigned char *h = data[i];
		if (!f)
			continue;
		f->packets++;
		f->last = now;
		memset(h, 0, HEADER + FRAME);
		h[0] = h[1] = 1;
		h[HEADER] = len >> 8;
		h[HEADER + 1] = len;
		memcpy(h + HEADER + 6, &from[i].sin_addr, 4);
		memcpy(h + HEADER + 10, &from[i].sin_port, 2);
		to[m] = *upstream;
		out_iov[m++] = (struct iovec){h, HEADER + FRAME + len};
	}
	send_all(trunk, m);
}

static void downlink(int trunk, int ingress, const struct sockaddr_in *upstream)
{
	int n = receive(trunk), m = 0;
	for (int i = 0; i < n; i++) {
		unsigned char *d = data[i] + HEADER + FRAME, *f = d + HEADER;
		unsigned len = in[i].msg_len;
		uint32_t ip;
		uint16_t port;
		if (len < HEADER + FRAME || from[i].sin_addr.s_addr != upstream->sin_addr.s_addr ||
		    from[i].sin_port != upstream->sin_port || d[0] != 1 || d[1] != 1 ||
		    (unsigned)(f[0] << 8 | f[1]) != len - HEADER - FRAME)
			continue;
		memcpy(&ip, f + 6, 4);
		memcpy(&port, f + 10, 2);
		if (!find(ip, port, 0))
			continue;
		to[m].sin_family = AF_INET;
		to[m].sin_addr.s_addr = ip;
		to[m].sin_port = port;
		out_iov[m++] = (struct iovec){f + FRAME, len - HEADER - FRAME};
	}
	send_all(ingress, m);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a, b, upstream = {.sin_family = AF_INET};
	if (argc != 3 || inet_pton(AF_INET, argv[1], &upstream.sin_addr) != 1) {
		fprintf(stderr, "usage: forward UPSTREAM-IP UPSTREAM-PORT\n");
		return 2;
	}
	upstream.sin_port = htons(atoi(argv[2]));
	int ingress = open_socket(&a), trunk = open_socket(&b);
	for (int i = 0; i < BATCH; i++) {
		in_iov[i] = (struct iovec){data[i] + HEADER + FRAME, SLOT};
		in[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_iov = &in_iov[i], .msg_iovlen = 1};
		out[i].msg_hdr = (struct msghdr){.msg_name = &to[i], .msg_namelen = sizeof to[i], .msg_iov = &out_iov[i], .msg_iovlen = 1};
	}
	int ep = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN};
	ev.data.fd = ingress;
	epoll_ctl(ep, EPOLL_CTL_ADD, ingress, &ev);
	ev.data.fd = trunk;
	epoll_ctl(ep, EPOLL_CTL_ADD, trunk, &ev);
	printf("127.0.0.1:%d 127.0.0.1:%d\n", ntohs(a.sin_port), ntohs(b.sin_port));
	fflush(stdout);
	for (;;) {
		struct epoll_event evs[2];
		int n = epoll_wait(ep, evs, 2, -1);
		if (n < 0 && errno != EINTR) {
			perror("epoll_wait");
			return 1;
		}
		for (int i = 0; i < n; i++) {
			if (evs[i].data.fd == ingress)
				uplink(ingress, trunk, &upstream);
			else
				downlink(trunk, ingress, &upstream);
		}
	}
}
