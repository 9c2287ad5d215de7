/* Locks of files: by one program alone, and by programs of two nodes in turn. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void lock_range(int fd, short type)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
	if (fcntl(fd, F_SETLKW, &l) < 0)
		die("fcntl lock");
}

static void lock_whole(int fd, short type)
{
	if (flock(fd, type == F_UNLCK ? LOCK_UN : LOCK_EX) < 0)
		die("flock");
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	if (fd < 0)
		die(path);
	return fd;
}

/* lock-unlock PATH fcntl|flock N: the median of N times lock and unlock. */
void lock_unlock(char **a)
{
	void (*lock)(int, short) = strcmp(a[1], "flock") == 0 ? lock_whole : lock_range;
	int fd = open_file(a[0]);
	size_t n = (size_t)atol(a[2]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		lock(fd, F_WRLCK);
		lock(fd, F_UNLCK);
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}

/* lock-first DIR PREFIX N: the median of the first lock and unlock of each of N files, which are open. */
void lock_first(char **a)
{
	size_t n = (size_t)atol(a[2]);
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s%zu", a[0], a[1], i);
		int fd = open_file(path);
		int64_t start = now();
		lock_range(fd, F_WRLCK);
		lock_range(fd, F_UNLCK);
		t[i] = now() - start;
		close(fd);
	}
	printf("%lld\n", (long long)median(t, n));
}

/* lock-opened DIR PREFIX N: opens N files, and when its input ends the median of the first lock and unlock of each. */
void lock_opened(char **a)
{
	size_t n = (size_t)atol(a[2]);
	int64_t *t = calloc(n, sizeof *t);
	int *fd = calloc(n, sizeof *fd);
	for (size_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s%zu", a[0], a[1], i);
		fd[i] = open_file(path);
	}
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	for (size_t i = 0; i < n; i++) {
		int64_t start = now();
		lock_range(fd[i], F_WRLCK);
		lock_range(fd[i], F_UNLCK);
		t[i] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}

/* lock-keep DIR PREFIX N LOCK: makes N files, locks and unlocks each if LOCK is 1, and keeps them open until its input ends. */
void lock_keep(char **a)
{
	long n = atol(a[2]);
	for (long i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s%ld", a[0], a[1], i);
		int fd = open_file(path);
		if (atoi(a[3])) {
			lock_range(fd, F_WRLCK);
			lock_range(fd, F_UNLCK);
		}
	}
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
}

/*
 * lock-turns PATH ME N: N times waits for its turn, which the first byte of the file says, and gives it to the other, all
 * under the lock. Prints how long one turn of both took.
 */
void lock_turns(char **a)
{
	int fd = open_file(a[0]);
	char me = a[1][0], turn;
	long n = atol(a[2]);
	puts("ready");
	fflush(stdout);
	int64_t start = now();
	for (long done = 0; done < n;) {
		lock_range(fd, F_WRLCK);
		if (pread(fd, &turn, 1, 0) != 1)
			turn = 'a';
		if (turn == me) {
			turn = me == 'a' ? 'b' : 'a';
			if (pwrite(fd, &turn, 1, 0) != 1)
				die("write");
			done++;
		}
		lock_range(fd, F_UNLCK);
	}
	printf("%.0f\n", (double)(now() - start) / (double)n);
}
