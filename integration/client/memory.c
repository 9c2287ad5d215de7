/*
 * The commands of the test client that touch mapped memory. A mapping is named
 * by the number that mmap answered; offsets count bytes from its start.
 */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_MAPS 64
#define MAX_JOBS 64

static struct {
	unsigned char *p;
	size_t n;
} maps[MAX_MAPS];

static unsigned char *at(const char *map, const char *off) { return maps[atoi(map) % MAX_MAPS].p + atoll(off); }

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* mmap FD OFF LEN r|rw */
static void cmd_mmap(char **a)
{
	int id = 0;
	while (id < MAX_MAPS && maps[id].p)
		id++;
	if (id == MAX_MAPS) {
		answer("err EMFILE");
		return;
	}
	size_t n = (size_t)atoll(a[2]);
	void *p = mmap(NULL, n, strcmp(a[3], "rw") ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, atoi(a[0]), atoll(a[1]));
	if (p == MAP_FAILED) {
		answer_errno();
		return;
	}
	maps[id].p = p;
	maps[id].n = n;
	answer("ok %d", id);
}

static void cmd_munmap(char **a)
{
	int id = atoi(a[0]) % MAX_MAPS;
	int r = munmap(maps[id].p, maps[id].n);
	maps[id].p = NULL;
	if (r < 0)
		answer_errno();
	else
		answer("ok");
}

static void cmd_msync(char **a)
{
	int id = atoi(a[0]) % MAX_MAPS;
	if (msync(maps[id].p, maps[id].n, MS_SYNC) < 0)
		answer_errno();
	else
		answer("ok");
}

/* load MAP OFF LEN */
static void cmd_load(char **a)
{
	size_t n = (size_t)atoll(a[2]);
	unsigned char *copy = malloc(n + 1);
	memcpy(copy, at(a[0], a[1]), n);
	answer_bytes(copy, n);
	free(copy);
}

/* store MAP OFF HEX */
static void cmd_store(char **a)
{
	size_t n;
	unsigned char *p = bytes_of(a[2], &n);
	memcpy(at(a[0], a[1]), p, n);
	free(p);
	answer("ok");
}

/* fill MAP OFF LEN SEED: the byte at file position i becomes pattern(seed, i). */
static unsigned char pattern(uint64_t seed, uint64_t i)
{
	uint64_t h = (i / 8 + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xbf58476d1ce4e5b9u;
	h ^= h >> 29;
	h *= 0x94d049bb133111ebu;
	h ^= h >> 32;
	return (unsigned char)(h >> (i % 8 * 8));
}

static void cmd_fill(char **a)
{
	unsigned char *p = at(a[0], a[1]);
	uint64_t n = (uint64_t)atoll(a[2]), seed = (uint64_t)atoll(a[3]), off = (uint64_t)atoll(a[1]);
	for (uint64_t i = 0; i < n; i++)
		p[i] = pattern(seed, off + i);
	answer("ok");
}

/* check MAP OFF LEN SEED: answers -1 or the first offset that is not what fill stored. */
static void cmd_check(char **a)
{
	unsigned char *p = at(a[0], a[1]);
	uint64_t n = (uint64_t)atoll(a[2]), seed = (uint64_t)atoll(a[3]), off = (uint64_t)atoll(a[1]);
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != pattern(seed, off + i)) {
			answer("ok %" PRIu64, off + i);
			return;
		}
	answer("ok -1");
}

/* spin MAP OFF HEX TIMEOUT_MS: loads until the bytes are there; answers the nanoseconds it took, or err ETIMEDOUT. */
static void cmd_spin(char **a)
{
	size_t n;
	unsigned char *want = bytes_of(a[2], &n);
	unsigned char *p = at(a[0], a[1]);
	int64_t start = now_ns(), deadline = start + atoll(a[3]) * 1000000;
	for (;;) {
		size_t i = 0;
		while (i < n && *(volatile unsigned char *)(p + i) == want[i])
			i++;
		int64_t t = now_ns();
		if (i == n) {
			answer("ok %" PRId64, t - start);
			break;
		}
		if (t > deadline) {
			answer("err ETIMEDOUT");
			break;
		}
		struct timespec nap = {.tv_nsec = 20000};
		nanosleep(&nap, NULL);
	}
	free(want);
}

/* An element type: how to add atomically, and its value as a double (exact up to 2^53). */
struct element {
	const char *name;
	size_t size;
	void (*add)(void *p, double v);
	double (*value)(const void *p);
};

#define INTEGER(T)                                                                                       \
	static void add_##T(void *p, double v) { __atomic_fetch_add((T *)p, (T)(int64_t)v, __ATOMIC_SEQ_CST); } \
	static double value_##T(const void *p) { return (double)__atomic_load_n((const T *)p, __ATOMIC_SEQ_CST); }

#define FLOATING(T, U)                                                                                                     \
	static void add_##T(void *p, double v)                                                                             \
	{                                                                                                                  \
		U old = __atomic_load_n((U *)p, __ATOMIC_SEQ_CST), new;                                                    \
		T f;                                                                                                       \
		do {                                                                                                       \
			memcpy(&f, &old, sizeof f);                                                                        \
			f = (T)(f + (T)v);                                                                                 \
			memcpy(&new, &f, sizeof f);                                                                        \
		} while (!__atomic_compare_exchange_n((U *)p, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));          \
	}                                                                                                                  \
	static double value_##T(const void *p)                                                                             \
	{                                                                                                                  \
		U bits = __atomic_load_n((const U *)p, __ATOMIC_SEQ_CST);                                                  \
		T f;                                                                                                       \
		memcpy(&f, &bits, sizeof f);                                                                               \
		return (double)f;                                                                                          \
	}

INTEGER(int8_t)
INTEGER(int16_t)
INTEGER(int32_t)
INTEGER(int64_t)
INTEGER(uint8_t)
INTEGER(uint16_t)
INTEGER(uint32_t)
INTEGER(uint64_t)
FLOATING(float, uint32_t)
FLOATING(double, uint64_t)

static const struct element elements[] = {
	{"i8", 1, add_int8_t, value_int8_t}, {"i16", 2, add_int16_t, value_int16_t},
	{"i32", 4, add_int32_t, value_int32_t}, {"i64", 8, add_int64_t, value_int64_t},
	{"u8", 1, add_uint8_t, value_uint8_t}, {"u16", 2, add_uint16_t, value_uint16_t},
	{"u32", 4, add_uint32_t, value_uint32_t}, {"u64", 8, add_uint64_t, value_uint64_t},
	{"f32", 4, add_float, value_float}, {"f64", 8, add_double, value_double},
};

static const struct element *element_of(const char *name)
{
	for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
		if (!strcmp(elements[i].name, name))
			return &elements[i];
	return NULL;
}

/* range TYPE MAP OFF COUNT: the least and the greatest element. */
static void cmd_range(char **a)
{
	const struct element *e = element_of(a[0]);
	unsigned char *p = at(a[1], a[2]);
	if (!e) {
		answer("err USAGE type");
		return;
	}
	double lo = e->value(p), hi = lo;
	for (long long i = 1, n = atoll(a[3]); i < n; i++) {
		double v = e->value(p + (size_t)i * e->size);
		lo = v < lo ? v : lo;
		hi = v > hi ? v : hi;
	}
	answer("ok %.0f %.0f", lo, hi);
}

struct job {
	pthread_t thread;
	const struct element *e;
	unsigned char *p;
	long long count, rounds;
	double v;
	int running, fault;
};

static struct job jobs[MAX_JOBS];

static void *adder(void *arg)
{
	struct job *j = arg;
	int sig = sigsetjmp(fault_return, 1);
	if (sig) {
		j->fault = sig;
		return NULL;
	}
	fault_armed = 1;
	for (long long r = 0; r < j->rounds; r++)
		for (long long i = 0; i < j->count; i++)
			j->e->add(j->p + (size_t)i * j->e->size, j->v);
	return NULL;
}

/* add TYPE MAP OFF COUNT VALUE ROUNDS: a thread starts that adds VALUE to each of the COUNT elements ROUNDS times. */
static void cmd_add(char **a)
{
	int id = 0;
	while (id < MAX_JOBS && jobs[id].running)
		id++;
	const struct element *e = element_of(a[0]);
	if (id == MAX_JOBS || !e) {
		answer("err USAGE add");
		return;
	}
	jobs[id] = (struct job){.e = e, .p = at(a[1], a[2]), .count = atoll(a[3]), .v = atof(a[4]), .rounds = atoll(a[5]), .running = 1};
	if (pthread_create(&jobs[id].thread, NULL, adder, &jobs[id])) {
		jobs[id].running = 0;
		answer("err EAGAIN");
		return;
	}
	answer("ok %d", id);
}

/* join MAP: publishes with msync again and again while adders run, ends when all did; answers the number of msyncs. */
static void cmd_join(char **a)
{
	int id = atoi(a[0]) % MAX_MAPS, fault = 0;
	long syncs = 0;
	for (int i = 0; i < MAX_JOBS; i++) {
		while (jobs[i].running && pthread_tryjoin_np(jobs[i].thread, NULL) == EBUSY) {
			if (msync(maps[id].p, maps[id].n, MS_SYNC) < 0) {
				answer_errno();
				return;
			}
			syncs++;
		}
		fault |= jobs[i].running && jobs[i].fault;
		jobs[i].running = 0;
	}
	if (fault)
		answer("err SIGBUS");
	else
		answer("ok %ld", syncs);
}

/* pin MAP OFF LEN: pins the memory for good, as a driver of a GPU or a network card does: here the
 * registered buffer of an io_uring, which goes with its descriptor. */
static void cmd_pin(char **a)
{
	struct io_uring_params p = {0};
	int fd = (int)syscall(SYS_io_uring_setup, 1, &p);
	if (fd < 0) {
		answer_errno();
		return;
	}
	struct iovec v = {at(a[0], a[1]), (size_t)atoll(a[2])};
	if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, &v, 1) < 0) {
		answer_errno();
		close(fd);
	} else
		answer("ok %d", fd);
}

/* mlock MAP */
static void cmd_mlock(char **a)
{
	int id = atoi(a[0]) % MAX_MAPS;
	if (mlock(maps[id].p, maps[id].n) < 0)
		answer_errno();
	else
		answer("ok");
}

const struct command memory_commands[] = {
	{"mmap", 4, cmd_mmap}, {"munmap", 1, cmd_munmap}, {"msync", 1, cmd_msync},
	{"load", 3, cmd_load}, {"store", 3, cmd_store}, {"fill", 4, cmd_fill}, {"check", 4, cmd_check},
	{"spin", 4, cmd_spin}, {"range", 4, cmd_range}, {"add", 6, cmd_add}, {"join", 1, cmd_join},
	{"pin", 3, cmd_pin}, {"mlock", 1, cmd_mlock},
	{NULL, 0, NULL},
};
