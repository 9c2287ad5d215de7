/* Small publishes: what a sync costs its caller, and when others see the store. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* write-fsync PATH N: the median of N times write(4 KiB) and fsync. */
void write_fsync(char **a)
{
	static char block[PAGE];
	int fd = open(a[0], O_RDWR | O_CREAT, 0644);
	if (fd < 0)
		die(a[0]);
	size_t n = (size_t)atol(a[1]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		block[0]++;
		if (pwrite(fd, block, PAGE, 0) != PAGE || fsync(fd) < 0)
			die("write and fsync");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}

/* store-msync PATH N: the median of N times one store and msync of its page. */
void store_msync(char **a)
{
	volatile uint64_t *p = map_file(a[0], PAGE);
	size_t n = (size_t)atol(a[1]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		p[i % (PAGE / 8)] += 1;
		if (msync((void *)p, PAGE, MS_SYNC) < 0)
			die("msync");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}

static void wait_for(_Atomic uint32_t *word, uint32_t want)
{
	for (uint32_t v; (v = *word) != want;)
		syscall(SYS_futex, word, FUTEX_WAIT, v, NULL, NULL, 0);
}

static void tell(_Atomic uint32_t *word, uint32_t v)
{
	*word = v;
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void saw(struct sighting *s, uint32_t round)
{
	s->when = now();
	tell(&s->round, round);
}

int64_t seen(struct sighting *s, uint32_t round)
{
	wait_for(&s->round, round);
	return s->when;
}

static volatile uint32_t *area_word(const char *path) { return map_file(path, PAGE); }

void spin(volatile uint32_t *p, uint32_t want)
{
	for (unsigned spins = 0; *p != want; spins++) {
		if (spins % 64 == 63)
			sched_yield();
	}
}

/* latency-reader PATH SIGHTING ROUNDS: spins on the first word of the area. */
void latency_reader(char **a)
{
	volatile uint32_t *p = area_word(a[0]);
	struct sighting *s = map_file(a[1], PAGE);
	uint32_t rounds = (uint32_t)atol(a[2]);
	(void)*p;
	puts("ready");
	fflush(stdout);
	for (uint32_t i = 1; i <= rounds; i++) {
		spin(p, i);
		saw(s, i);
	}
}

/* latency-writer PATH ROUNDS READERS SIGHTING...: SIGHTING is a prefix; reader i writes to SIGHTING.i. Median until the last has seen it. */
void latency_writer(char **a)
{
	volatile uint32_t *p = area_word(a[0]);
	size_t rounds = (size_t)atol(a[1]), readers = (size_t)atol(a[2]), warm = rounds / 10;
	struct sighting **s = calloc(readers, sizeof *s);
	for (size_t i = 0; i < readers; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s.%zu", a[3], i);
		s[i] = map_file(path, PAGE);
	}
	int64_t *t = calloc(rounds, sizeof *t);
	for (uint32_t i = 1; i <= rounds; i++) {
		int64_t start = now(), last = start;
		*p = i;
		if (msync((void *)p, PAGE, MS_SYNC) < 0)
			die("msync");
		for (size_t r = 0; r < readers; r++) {
			int64_t when = seen(s[r], i);
			last = when > last ? when : last;
		}
		t[i - 1] = last - start;
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}

/* read-reader PATH SIGHTING ROUNDS: reads the last word of a page of a file with read(2), again and again. */
void read_reader(char **a)
{
	int fd = open(a[0], O_RDONLY);
	if (fd < 0) {
		map_file(a[0], PAGE); /* the writer of the yardstick comes later */
		fd = open(a[0], O_RDONLY);
	}
	if (fd < 0)
		die(a[0]);
	struct sighting *s = map_file(a[1], PAGE);
	uint32_t rounds = (uint32_t)atol(a[2]), word = 0;
	puts("ready");
	fflush(stdout);
	for (uint32_t i = 1; i <= rounds; i++) {
		for (unsigned reads = 0; word != i; reads++) {
			if (pread(fd, &word, sizeof word, PAGE - sizeof word) != sizeof word)
				die("read");
			if (reads % 64 == 63)
				sched_yield();
		}
		saw(s, i);
	}
}

/* page-latency DIR AREAS N: the median of N times one store and msync, each in another of the areas DIR/a0, DIR/a1, ... */
void page_latency(char **a)
{
	size_t areas = (size_t)atol(a[1]), n = (size_t)atol(a[2]);
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/a%zu", a[0], i * 7919 % areas);
		volatile uint64_t *p = map_file(path, PAGE);
		int64_t start = now();
		*p += 1;
		if (msync((void *)p, PAGE, MS_SYNC) < 0)
			die("msync");
		t[i] = now() - start;
		munmap((void *)p, PAGE);
	}
	printf("%lld\n", (long long)median(t, n));
}
