/* Small publishes of attached programs, and a floor for them: programs that pass a page on in the same hops, and do nothing else. */
#define _GNU_SOURCE
#include "bench.h"
#define DSMFS_IMPLEMENTATION
#include "../../include/dsmfs.h"

#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
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

/* print_work prints the processor time of this process. */
static void print_work(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	printf("%lld\n", (long long)t.tv_sec * 1000000000 + t.tv_nsec);
}

static struct sockaddr_un name(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	return at;
}

/* hop-end PORT FILE: puts each page that comes into the memory of a file, wakes who waits for its last word, and answers. Prints its processor time in the end. */
void hop_end(char **a)
{
	char page[PAGE], done[ANSWER] = {0};
	char *to = map_file(a[1], PAGE);
	uint32_t *word = (uint32_t *)(to + PAGE - sizeof *word);
	int conn = tcp_answer(a[0]);
	while (receive_all(conn, page, PAGE)) {
		memcpy(to, page, PAGE - sizeof *word);
		__atomic_store_n(word, *(uint32_t *)(page + PAGE - sizeof *word), __ATOMIC_SEQ_CST);
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
		send_all(conn, done, ANSWER);
	}
	print_work();
}

/* hop-forward PORT HOST PORT: passes each page on, and the answer back. As hop-end in the end. */
void hop_forward(char **a)
{
	char page[PAGE], done[ANSWER];
	int to = tcp_dial(a[1], a[2]), from = tcp_answer(a[0]);
	while (receive_all(from, page, PAGE)) {
		send_all(to, page, PAGE);
		if (!receive_all(to, done, ANSWER))
			die("the next hop is gone");
		send_all(from, done, ANSWER);
	}
	print_work();
}

/* hop-relay SOCKET FILE HOST PORT: when a program asks for it sends on the page in the memory of a file, and answers when the other end has. As hop-end in the end. */
void hop_relay(char **a)
{
	char request[ANSWER], page[PAGE];
	const char *from = map_file(a[1], PAGE);
	struct sockaddr_un at = name(a[0]);
	int to = tcp_dial(a[2], a[3]), fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	unlink(a[0]);
	int conn = answer(fd, (struct sockaddr *)&at, sizeof at);
	while (receive_all(conn, request, ANSWER)) {
		memcpy(page, from, PAGE);
		send_all(to, page, PAGE);
		if (!receive_all(to, request, ANSWER))
			die("the other end is gone");
		send_all(conn, request, ANSWER);
	}
	print_work();
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
		send_all(fd, request, ANSWER);
		if (!receive_all(fd, request, ANSWER))
			die("the relay is gone");
		t[i - 1] = seen(s, i) - start;
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}
