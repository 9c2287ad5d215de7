/* Small publishes of attached programs, and a floor for them: programs that pass a page on in the same hops, and do nothing else. */
#define _GNU_SOURCE
#include "bench.h"
#define DSMFS_IMPLEMENTATION
#include "../../include/dsmfs.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAGE = 4096, ANSWER = 64 };

static dsmfs *attach(const char *socket, const char *path, int access)
{
	dsmfs *area;
	if (dsmfs_attach(socket, path, access, &area) < 0) {
		fprintf(stderr, "attach: %s\n", dsmfs_error());
		exit(1);
	}
	return area;
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* spin waits for a word as latency-reader does. */
static void spin(volatile uint32_t *p, uint32_t want)
{
	for (unsigned spins = 0; *p != want; spins++) {
		if (spins % 64 == 63)
			sched_yield();
	}
}

/* attached-reader SOCKET PATH SIGHTING ROUNDS HOW: sees each value of the last word of the area; HOW is spin, or wait: it sleeps in dsmfs_wait. */
void attached_reader(char **a)
{
	dsmfs *area = attach(a[0], a[1], DSMFS_READ);
	volatile uint32_t *p = (volatile uint32_t *)((char *)dsmfs_data(area) + dsmfs_size(area) - sizeof *p);
	struct sighting *s = map_file(a[2], PAGE);
	uint32_t rounds = (uint32_t)atol(a[3]);
	int waits = strcmp(a[4], "wait") == 0;
	(void)*p;
	int64_t v = dsmfs_acquire(area);
	ready();
	for (uint32_t i = 1; i <= rounds; i++) {
		while (waits && *p != i) {
			if ((v = dsmfs_wait(area, v + 1, 0)) < 0)
				die(dsmfs_error());
		}
		spin(p, i);
		saw(s, i);
	}
	dsmfs_detach(area);
}

/* attached-writer SOCKET PATH SIGHTING ROUNDS: the median from a store to each page and a publish until the reader has seen it. */
void attached_writer(char **a)
{
	dsmfs *area = attach(a[0], a[1], DSMFS_WRITE);
	char *mem = dsmfs_data(area);
	size_t size = dsmfs_size(area), rounds = (size_t)atol(a[3]), warm = rounds / 10;
	struct sighting *s = map_file(a[2], PAGE);
	int64_t *t = calloc(rounds, sizeof *t);
	for (uint32_t i = 1; i <= rounds; i++) {
		int64_t start = now();
		for (size_t at = 0; at < size; at += PAGE)
			memset(mem + at, (int)(i % 251), PAGE);
		*(volatile uint32_t *)(mem + size - sizeof i) = i;
		if (dsmfs_publish(area) < 0)
			die(dsmfs_error());
		t[i - 1] = seen(s, i) - start;
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
	dsmfs_detach(area);
}

static void pass(int fd, const void *p, size_t n)
{
	if (send(fd, p, n, MSG_NOSIGNAL) != (ssize_t)n)
		die("send");
}

/* take returns 0 at the end of the connection. */
static int take(int fd, void *p, size_t n)
{
	for (size_t got = 0; got < n;) {
		ssize_t r = read(fd, (char *)p + got, n - got);
		if (r < 0)
			die("read");
		if (r == 0)
			return 0;
		got += (size_t)r;
	}
	return 1;
}

static int dial(const char *host, const char *port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	inet_pton(AF_INET, host, &to.sin_addr);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

/* meet answers one connection. It prints "ready" when it listens. */
static int meet(const char *port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1) < 0)
		die("listen");
	ready();
	int conn = accept(fd, NULL, NULL);
	if (conn < 0)
		die("accept");
	setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return conn;
}

static struct sockaddr_un name(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	return at;
}

/* hop-end PORT FILE: puts each page that comes into the memory of a file, wakes who waits for its last word, and answers. */
void hop_end(char **a)
{
	char page[PAGE], answer[ANSWER] = {0};
	char *to = map_file(a[1], PAGE);
	uint32_t *word = (uint32_t *)(to + PAGE - sizeof *word);
	int conn = meet(a[0]);
	while (take(conn, page, PAGE)) {
		memcpy(to, page, PAGE - sizeof *word);
		__atomic_store_n(word, *(uint32_t *)(page + PAGE - sizeof *word), __ATOMIC_SEQ_CST);
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
		pass(conn, answer, ANSWER);
	}
}

/* hop-forward PORT HOST PORT: passes each page on, and the answer back. */
void hop_forward(char **a)
{
	char page[PAGE], answer[ANSWER];
	int to = dial(a[1], a[2]), from = meet(a[0]);
	while (take(from, page, PAGE)) {
		pass(to, page, PAGE);
		if (!take(to, answer, ANSWER))
			die("the next hop is gone");
		pass(from, answer, ANSWER);
	}
}

/* hop-relay SOCKET FILE HOST PORT: when a program asks for it sends on the page in the memory of a file, and answers when the other end has. */
void hop_relay(char **a)
{
	char request[ANSWER], page[PAGE];
	const char *from = map_file(a[1], PAGE);
	struct sockaddr_un at = name(a[0]);
	int to = dial(a[2], a[3]), fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	unlink(a[0]);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1) < 0)
		die("listen");
	ready();
	int conn = accept(fd, NULL, NULL);
	if (conn < 0)
		die("accept");
	while (take(conn, request, ANSWER)) {
		memcpy(page, from, PAGE);
		pass(to, page, PAGE);
		if (!take(to, request, ANSWER))
			die("the other end is gone");
		pass(conn, request, ANSWER);
	}
}

/* hop-reader FILE SIGHTING ROUNDS HOW: as attached-reader, of what hop-end puts in place. */
void hop_reader(char **a)
{
	uint32_t *p = (uint32_t *)((char *)map_file(a[0], PAGE) + PAGE - sizeof *p);
	struct sighting *s = map_file(a[1], PAGE);
	uint32_t rounds = (uint32_t)atol(a[2]);
	int waits = strcmp(a[3], "wait") == 0;
	ready();
	for (uint32_t i = 1, v; i <= rounds; i++) {
		while (waits && (v = __atomic_load_n(p, __ATOMIC_SEQ_CST)) != i)
			syscall(SYS_futex, p, FUTEX_WAIT, v, NULL, NULL, 0);
		spin(p, i);
		saw(s, i);
	}
}

/* hop-writer SOCKET FILE SIGHTING ROUNDS: as attached-writer, to a hop-relay. */
void hop_writer(char **a)
{
	char request[ANSWER] = {0};
	char *mem = map_file(a[1], PAGE);
	struct sighting *s = map_file(a[2], PAGE);
	size_t rounds = (size_t)atol(a[3]), warm = rounds / 10;
	struct sockaddr_un at = name(a[0]);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("connect");
	int64_t *t = calloc(rounds, sizeof *t);
	for (uint32_t i = 1; i <= rounds; i++) {
		int64_t start = now();
		memset(mem, (int)(i % 251), PAGE);
		*(volatile uint32_t *)(mem + PAGE - sizeof i) = i;
		pass(fd, request, ANSWER);
		if (!take(fd, request, ANSWER))
			die("the relay is gone");
		t[i - 1] = seen(s, i) - start;
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}
