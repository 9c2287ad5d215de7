/*
 * A floor for sums of large arrays: each of several nodes is home of a part of the array. A program fills its memory and tells the process
 * beside it, which sends each other home its part and adds what comes for its own, four bytes a number; the sums go back, into the memory of
 * the program.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 8, CHUNK = 256 << 10, ANSWER = 64 };

struct peer {
	int fd;
	size_t sent, got, odd; /* of its part and then of the sum of ours; of ours and then of the sum of its; bytes of half a number */
	char chunk[CHUNK];
};

static struct peer peers[MOST];
static int self, nodes;
static size_t part; /* bytes of each home */

__attribute__((optimize("O3"), target_clones("avx2", "default"))) static void add(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

/* summed returns how many bytes of our part have been added from all. */
static size_t summed(void)
{
	size_t least = part;
	for (int i = 0; i < nodes; i++)
		if (i != self && peers[i].got - peers[i].odd < least)
			least = peers[i].got - peers[i].odd;
	return least;
}

static int may_send(const struct peer *p) { return p->sent < part || p->sent < part + summed(); }

static void send_some(int i, const char *own, const char *sum)
{
	struct peer *p = &peers[i];
	size_t at = p->sent, end = at < part ? part : part + summed();
	const char *from = at < part ? own + (size_t)i * part + at : sum + (size_t)self * part + (at - part);
	size_t n = end - at < CHUNK ? end - at : CHUNK;
	ssize_t r = send(p->fd, from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (r < 0 && errno != EAGAIN)
		die("send");
	p->sent += r > 0 ? (size_t)r : 0;
}

static void receive_some(int i, char *sum)
{
	struct peer *p = &peers[i];
	int adds = p->got < part;
	char *to = adds ? p->chunk + p->odd : sum + (size_t)i * part + (p->got - part);
	size_t left = adds ? part - p->got : 2 * part - p->got, room = CHUNK - p->odd;
	ssize_t r = recv(p->fd, to, left < room ? left : room, MSG_DONTWAIT);
	if (r == 0 || (r < 0 && errno != EAGAIN))
		die("a node is gone");
	if (r < 0)
		return;
	size_t at = p->got - p->odd, n = (p->odd + (size_t)r) / 4 * 4;
	p->got += (size_t)r;
	if (!adds)
		return;
	add((float *)(sum + (size_t)self * part + at), (const float *)p->chunk, n / 4);
	p->odd = p->odd + (size_t)r - n;
	memmove(p->chunk, p->chunk + n, p->odd);
}

/* one_sum returns when all of the sum is in place and nobody waits for bytes of ours. */
static void one_sum(const char *own, char *sum)
{
	memcpy(sum + (size_t)self * part, own + (size_t)self * part, part);
	for (int i = 0; i < nodes; i++)
		peers[i].sent = peers[i].got = 0;
	for (;;) {
		struct pollfd at[MOST];
		int of[MOST], n = 0;
		for (int i = 0; i < nodes; i++) {
			struct peer *p = &peers[i];
			short wants = (short)((p->got < 2 * part ? POLLIN : 0) | (may_send(p) ? POLLOUT : 0));
			if (i == self || (p->got == 2 * part && p->sent == 2 * part))
				continue;
			at[n] = (struct pollfd){p->fd, wants, 0};
			of[n++] = i;
		}
		if (n == 0)
			return;
		if (poll(at, (nfds_t)n, -1) < 0)
			die("poll");
		for (int k = 0; k < n; k++) {
			if (at[k].revents & (POLLIN | POLLHUP | POLLERR))
				receive_some(of[k], sum);
			if (at[k].revents & POLLOUT)
				send_some(of[k], own, sum);
		}
	}
}

static void connect_all(char *hosts, const char *port)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, MOST) < 0)
		die("listen");
	char *host = strtok(hosts, ",");
	for (int i = 0; i < self; i++, host = strtok(NULL, ",")) {
		peers[i].fd = tcp_dial(host, port);
		send_all(peers[i].fd, &self, sizeof self);
	}
	puts("ready");
	fflush(stdout);
	for (int i = self + 1, who; i < nodes; i++) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0 || !receive_all(fd, &who, sizeof who))
			die("accept");
		peers[who].fd = fd;
	}
}

/* sum-daemon SELF HOSTS PORT SOCKET FILE BYTES: the process of one of the nodes; it dials those before it. */
void sum_daemon(char **a)
{
	for (const char *c = a[1]; *c; c++)
		nodes += *c == ',';
	nodes++;
	self = atoi(a[0]);
	size_t size = (size_t)atoll(a[5]);
	part = size / (size_t)nodes;
	char *own = map_file(a[4], 2 * size), request[ANSWER];
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", a[3]);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	unlink(a[3]);
	if (nodes > MOST || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1) < 0)
		die("listen");
	connect_all(a[1], a[2]);
	int conn = accept(fd, NULL, NULL);
	while (receive_all(conn, request, ANSWER)) {
		one_sum(own, own + size);
		send_all(conn, request, ANSWER);
	}
}

/* sum-program SOCKET FILE BYTES MEMBERS ROUNDS: the median of a sum, without the first tenth. Prints "ready" first. */
void sum_program(char **a)
{
	size_t size = (size_t)atoll(a[2]), n = size / 4, rounds = (size_t)atol(a[4]), warm = (rounds + 9) / 10;
	float *own = map_file(a[1], 2 * size), members = (float)atoi(a[3]);
	char request[ANSWER] = {0};
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", a[0]);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("connect");
	puts("ready");
	fflush(stdout);
	int64_t *t = calloc(rounds, sizeof *t);
	for (size_t r = 0; r < rounds; r++) {
		int64_t start = now();
		for (size_t i = 0; i < n; i++)
			own[i] = 1;
		send_all(fd, request, ANSWER);
		if (!receive_all(fd, request, ANSWER))
			die("the process beside is gone");
		t[r] = now() - start;
		for (size_t i = 0; i < n; i += 1023)
			if (own[n + i] != members)
				die("the sum is wrong");
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}
