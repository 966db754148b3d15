// What datagrams through one process cost the kernel: sockets, system calls and
// nothing else. No relay in user space can be cheaper than the same calls here.
//
// usage: floor IN MAKE OUT TO FRAGMENT SIZE UPSTREAM-IP UPSTREAM-PORT CLIENT-PORT
//   IN        datagrams a receive call takes: 1 (recvfrom) or 64 (recvmmsg)
//   MAKE      what leaves for each that came: "all" its payloads of SIZE bytes,
//             "64" times its first one, or "count": one for every 64
//   OUT       datagrams a send call gives: 1 (sendto), 64 (sendmmsg), or "gso": one
//             call for all, in datagrams of 8 payloads
//   TO        "upstream", or "clients": the address that a payload's SSRC stands for
//   FRAGMENT  1 lets the kernel fragment (IP_PMTUDISC_OMIT), 0 does not
// It prints the address to send to and serves until it is ended.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#define BATCH 64
#define BUNDLE 8
#define SLOT (2048 + 192) // not a power of two, for the cache

static struct mmsghdr in[BATCH], out[BATCH];
static struct iovec in_iov[BATCH], out_iov[BATCH];
static struct sockaddr_in to[BATCH], upstream;
static unsigned char data[BATCH][SLOT];
static int in_fd, out_fd, queued;
static int in_batch, size, amplify, count, one, gso, to_clients;
static uint16_t client_port;

static int open_socket(struct sockaddr_in *sa, int fragment)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), bytes = 4 << 20, omit = IP_PMTUDISC_OMIT;
	socklen_t len = sizeof *sa;
	memset(sa, 0, sizeof *sa);
	sa->sin_family = AF_INET;
	sa->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) < 0 ||
	    (fragment && setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &omit, sizeof omit) < 0) ||
	    bind(fd, (struct sockaddr *)sa, sizeof *sa) < 0 || getsockname(fd, (struct sockaddr *)sa, &len) < 0) {
		perror("socket");
		exit(1);
	}
	return fd;
}

// A packet that the kernel refuses is lost.
static void flush(void)
{
	if (gso && queued > 0) {
		union {
			struct cmsghdr h;
			char room[CMSG_SPACE(sizeof(uint16_t))];
		} ctl = {.h = {.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT}};
		struct msghdr m = {.msg_name = &upstream, .msg_namelen = sizeof upstream, .msg_iov = out_iov, .msg_iovlen = queued};
		*(uint16_t *)CMSG_DATA(&ctl.h) = BUNDLE * size;
		if (queued > BUNDLE) {
			m.msg_control = &ctl;
			m.msg_controllen = sizeof ctl.room;
		}
		sendmsg(out_fd, &m, MSG_DONTWAIT);
	} else if (one) {
		for (int i = 0; i < queued; i++)
			sendto(out_fd, out_iov[i].iov_base, out_iov[i].iov_len, MSG_DONTWAIT, (struct sockaddr *)&to[i], sizeof to[i]);
	} else {
		for (int off = 0; off < queued;) {
			int k = sendmmsg(out_fd, out + off, queued - off, MSG_DONTWAIT);
			off += k > 0 ? k : 1;
		}
	}
	queued = 0;
}

static void push(unsigned char *payload, unsigned client)
{
	out_iov[queued] = (struct iovec){payload, size};
	if (to_clients) {
		to[queued].sin_family = AF_INET;
		to[queued].sin_addr.s_addr = htonl(127u << 24 | 1 << 16 | client / 250 << 8 | (1 + client % 250));
		to[queued].sin_port = client_port;
	} else {
		to[queued] = upstream;
	}
	if (++queued == BATCH)
		flush();
}

static void handle(unsigned char *d, int len)
{
	static unsigned counted, next;
	if (count) {
		if (++counted % BATCH == 0)
			push(d, 0);
	} else if (amplify) {
		for (int i = 0; i < BATCH; i++)
			push(d, next++ % 1000);
	} else {
		for (; len >= size; d += size, len -= size)
			push(d, d[9] << 16 | d[10] << 8 | d[11]);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in a, b;
	if (argc != 10 || inet_pton(AF_INET, argv[7], &upstream.sin_addr) != 1) {
		fprintf(stderr, "usage: floor IN MAKE OUT TO FRAGMENT SIZE UPSTREAM-IP UPSTREAM-PORT CLIENT-PORT\n");
		return 2;
	}
	in_batch = atoi(argv[1]);
	count = !strcmp(argv[2], "count");
	amplify = !strcmp(argv[2], "64");
	one = !strcmp(argv[3], "1");
	gso = !strcmp(argv[3], "gso");
	to_clients = !strcmp(argv[4], "clients");
	size = atoi(argv[6]);
	upstream.sin_family = AF_INET;
	upstream.sin_port = htons(atoi(argv[8]));
	client_port = htons(atoi(argv[9]));
	in_fd = open_socket(&a, 0);
	out_fd = open_socket(&b, atoi(argv[5]));
	for (int i = 0; i < BATCH; i++) {
		in_iov[i] = (struct iovec){data[i], SLOT};
		in[i].msg_hdr = (struct msghdr){.msg_iov = &in_iov[i], .msg_iovlen = 1};
		out[i].msg_hdr = (struct msghdr){.msg_name = &to[i], .msg_namelen = sizeof to[i], .msg_iov = &out_iov[i], .msg_iovlen = 1};
	}
	struct sockaddr_in from[BATCH];
	printf("127.0.0.1:%d\n", ntohs(a.sin_port));
	fflush(stdout);
	for (;;) {
		int n = 1;
		socklen_t len = sizeof from[0];
		if (in_batch == 1) {
			ssize_t k = recvfrom(in_fd, data[0], SLOT, 0, (struct sockaddr *)&from[0], &len);
			in[0].msg_len = k;
			n = k < 0 ? -1 : 1;
		} else {
			for (int i = 0; i < BATCH; i++) {
				in[i].msg_hdr.msg_name = &from[i];
				in[i].msg_hdr.msg_namelen = sizeof from[i];
			}
			n = recvmmsg(in_fd, in, BATCH, MSG_WAITFORONE, NULL);
		}
		if (n < 0 && errno != EINTR) {
			perror("receive");
			return 1;
		}
		for (int i = 0; i < n; i++)
			handle(data[i], in[i].msg_len);
		flush(); // the payloads are where the next receive writes
	}
}
