/* Large publishes, plain store speed, and many areas at once. */
#define _GNU_SOURCE
#include "bench.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* The value of a word of round r: never the same in two rounds, never zero. */
static uint64_t value(uint64_t r, size_t i) { return (i + 1) * 0x9e3779b97f4a7c15u + r * 0xbf58476d1ce4e5b9u; }

/*
 * bulk-writer PATH BYTES ROUND: stores a new value into every word, then prints
 * when it called msync and when that returned.
 */
void bulk_writer(char **a)
{
	size_t bytes = (size_t)atoll(a[1]);
	uint64_t round = (uint64_t)atoll(a[2]), *p = map_file(a[0], bytes);
	for (size_t i = 0; i < bytes / 8; i++)
		p[i] = value(round, i);
	int64_t start = now();
	if (msync(p, bytes, MS_SYNC) < 0)
		die("msync");
	printf("%lld %lld\n", (long long)start, (long long)now());
}

/*
 * bulk-reader PATH BYTES ROUND: maps the area for reading and touches it, prints "ready", and
 * prints when it had seen the new value in the last word of every page. Then it checks every word.
 */
void bulk_reader(char **a)
{
	size_t bytes = (size_t)atoll(a[1]), words = PAGE / 8;
	uint64_t round = (uint64_t)atoll(a[2]);
	const volatile uint64_t *p = map_to_read(a[0], bytes);
	uint64_t touched = 0;
	for (size_t i = 0; i < bytes / 8; i += words)
		touched += p[i];
	puts("ready");
	fflush(stdout);
	for (size_t i = words - 1; i < bytes / 8; i += words)
		while (p[i] != value(round, i)) {
			struct timespec nap = {.tv_nsec = 100000};
			nanosleep(&nap, NULL);
		}
	int64_t seen = now();
	for (size_t i = 0; i < bytes / 8; i++)
		if (p[i] != value(round, i)) {
			fprintf(stderr, "bench: word %zu is not what was published (%llu)\n", i, (unsigned long long)touched);
			exit(1);
		}
	printf("%lld\n", (long long)seen);
}

/* repeat-stores PATH BYTES MILLISECONDS: stores every word of the area again and again; bytes per second. */
void repeat_stores(char **a)
{
	size_t bytes = (size_t)atoll(a[1]);
	int64_t length = atoll(a[2]) * 1000000;
	volatile uint64_t *p = map_file(a[0], bytes);
	for (size_t i = 0; i < bytes / 8; i++)
		p[i] = 1;
	int64_t start = now(), end = start;
	double stored = 0;
	for (uint64_t v = 2; end - start < length; v++) {
		for (size_t i = 0; i < bytes / 8; i++)
			p[i] = v;
		stored += (double)bytes;
		end = now();
	}
	printf("%.0f\n", stored * 1e9 / (double)(end - start));
}

/* sweep PATH BYTES TIMES: stores to every word and loads all of them, again and again; bytes per second. */
void sweep(char **a)
{
	size_t words = (size_t)atoll(a[1]) / 8;
	volatile uint64_t *p = map_file(a[0], words * 8);
	uint64_t times = (uint64_t)atoll(a[2]), sum = 0;
	int64_t start = 0;
	for (uint64_t v = 0; v <= times; v++) {
		if (v == 1)
			start = now(); /* the first takes memory */
		for (size_t i = 0; i < words; i++)
			p[i] = v;
		for (size_t i = 0; i < words; i++)
			sum += p[i];
	}
	int64_t took = now() - start;
	if (sum != times * (times + 1) / 2 * words)
		die("the sum of what was stored");
	printf("%.0f\n", 2.0 * (double)times * (double)words * 8 * 1e9 / (double)took);
}

static void until_input_ends(void)
{
	char c;
	while (read(0, &c, 1) > 0)
		;
}

/*
 * hold-areas DIR N BYTES: makes or opens the areas DIR/a0 .. DIR/aN-1, maps and
 * touches them, prints how long that took, and keeps them until its input ends.
 */
void hold_areas(char **a)
{
	size_t n = (size_t)atol(a[1]), bytes = (size_t)atoll(a[2]);
	int64_t start = now();
	for (size_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/a%zu", a[0], i);
		volatile unsigned char *p = map_file(path, bytes);
		(void)*p;
	}
	printf("%lld\n", (long long)(now() - start));
	fflush(stdout);
	until_input_ends();
}

/* hold-file PATH BYTES: maps one area, prints "ready", and keeps it until its input ends. */
void hold_file(char **a)
{
	volatile unsigned char *p = map_file(a[0], (size_t)atoll(a[1]));
	(void)*p;
	puts("ready");
	fflush(stdout);
	until_input_ends();
}

/* copy-twice BYTES N: the median time of N to fill so many bytes, and to copy them to a second place and from there to a third. */
void copy_twice(char **a)
{
	size_t size = (size_t)atoll(a[0]), n = (size_t)atol(a[1]), warm = n / 10;
	char *from = malloc(size), *via = malloc(size), *to = malloc(size);
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		memset(from, (int)(i % 251), size);
		memcpy(via, from, size);
		memcpy(to, via, size);
		if (*(volatile char *)(to + size - 1) != (char)(i % 251))
			die("copy");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}
