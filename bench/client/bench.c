/*
 * bench is what the benchmarks run on mounts and beside them: one verb per
 * measurement, the result in nanoseconds (or bytes per second) on one line of
 * standard output. It is C so that the client itself costs next to nothing.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

void *map_file(const char *path, size_t size)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		die(path);
	if ((size_t)st.st_size < size && ftruncate(fd, (off_t)size) < 0)
		die("ftruncate");
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	close(fd);
	return p;
}

const void *map_to_read(const char *path, size_t size)
{
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		die(path);
	const void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	close(fd);
	return p;
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

int64_t median(int64_t *v, size_t n)
{
	qsort(v, n, sizeof *v, ascending);
	return v[n / 2];
}

static const struct {
	const char *name;
	int args;
	void (*run)(char **a);
} verbs[] = {
	{"tcp-server", 1, tcp_server}, {"tcp-client", 3, tcp_client},
	{"tcp-sink", 2, tcp_sink}, {"tcp-source", 4, tcp_source}, {"copy-twice", 2, copy_twice},
	{"write-fsync", 2, write_fsync}, {"store-msync", 2, store_msync},
	{"latency-writer", 4, latency_writer}, {"latency-reader", 3, latency_reader},
	{"bulk-writer", 3, bulk_writer}, {"bulk-reader", 3, bulk_reader},
	{"repeat-stores", 3, repeat_stores}, {"sweep", 3, sweep}, {"hold-areas", 3, hold_areas},
	{"hold-file", 2, hold_file}, {"create-files", 4, create_files}, {"set-modes", 2, set_modes},
	{"page-latency", 3, page_latency}, {"read-reader", 3, read_reader},
	{"lock-unlock", 3, lock_unlock}, {"lock-first", 3, lock_first}, {"lock-turns", 3, lock_turns},
	{"lock-keep", 4, lock_keep}, {"lock-opened", 3, lock_opened},
	{"barriers", 4, barriers},
	{"attached-reader", 5, attached_reader}, {"attached-writer", 4, attached_writer},
	{"hop-end", 2, hop_end}, {"hop-forward", 3, hop_forward}, {"hop-relay", 4, hop_relay},
	{"hop-reader", 4, hop_reader}, {"hop-writer", 4, hop_writer},
	{"sum-home", 4, sum_home}, {"sum-member", 4, sum_member},
	{"floor-daemon", 5, floor_daemon}, {"floor-end", 3, floor_end}, {"floor-writer", 5, floor_writer},
	{"floor-reader", 4, floor_reader}, {"floor-publisher", 6, floor_publisher}, {"floor-versions", 5, floor_versions},
	{"floor-mount", 4, floor_mount},
	{"fault-home", 2, fault_home}, {"fault-daemon", 4, fault_daemon}, {"fault-program", 3, fault_program},
	{"sum-daemon", 6, sum_daemon}, {"sum-program", 5, sum_program},
	{"factor-attached", 5, factor_attached}, {"factor-shared", 4, factor_shared},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (argc > 1 && !strcmp(argv[1], verbs[i].name) && argc == verbs[i].args + 2) {
			verbs[i].run(argv + 2);
			return 0;
		}
	fprintf(stderr, "bench: what is %s with %d arguments?\n", argc > 1 ? argv[1] : "nothing", argc - 2);
	return 2;
}
