/* Many small files: made one after the other by one program. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * create-files DIR PREFIX N BYTES: makes N files, each of so many bytes, in a directory that
 * is there, and prints how long one took.
 */
void create_files(char **a)
{
	long n = atol(a[2]);
	size_t bytes = (size_t)atoll(a[3]);
	char *data = malloc(bytes + 1);
	if (data == NULL)
		die("malloc");
	memset(data, 'x', bytes);
	int64_t start = now();
	for (long i = 0; i < n; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%s%ld", a[0], a[1], i);
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
		if (fd < 0)
			die(path);
		if (bytes > 0 && write(fd, data, bytes) != (ssize_t)bytes)
			die("write");
		if (close(fd) < 0)
			die("close");
	}
	printf("%.0f\n", (double)(now() - start) / (double)n);
	free(data);
}

/* set-modes PATH N: changes the mode of a directory N times, each after the other, and prints what one took. */
void set_modes(char **a)
{
	long n = atol(a[1]);
	int64_t start = now();
	for (long i = 0; i < n; i++)
		if (chmod(a[0], i % 2 ? 0755 : 0750) < 0)
			die(a[0]);
	printf("%.0f\n", (double)(now() - start) / (double)n);
}
