/* A floor for sums over programs: one adds what the others send, and sends them the sum. */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 16 };

__attribute__((optimize("O3"), target_clones("avx2", "default"))) static void add(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

static float *ones(size_t n)
{
	float *f = malloc(n * sizeof *f);
	for (size_t i = 0; i < n; i++)
		f[i] = 1;
	return f;
}

/* sum-home PORT MEMBERS ELEMENTS ROUNDS: the median of a sum, without the first tenth. */
void sum_home(char **a)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, conn[MOST], others = atoi(a[1]) - 1;
	size_t n = (size_t)atol(a[2]), rounds = (size_t)atol(a[3]), warm = rounds / 10;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(a[0]))};
	float *own = ones(n), *part = ones(n), *sum = ones(n);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (others >= MOST || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, MOST) < 0)
		die("listen");
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < others; i++) {
		if ((conn[i] = accept(fd, NULL, NULL)) < 0 || setsockopt(conn[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
			die("accept");
	}
	int64_t *t = calloc(rounds, sizeof *t);
	for (size_t r = 0; r < rounds; r++) {
		int64_t start = now();
		for (size_t i = 0; i < n; i++)
			sum[i] = own[i];
		for (int i = 0; i < others; i++) {
			if (!receive_all(conn[i], part, n * sizeof *part))
				die("a member is gone");
			add(sum, part, n);
		}
		for (int i = 0; i < others; i++)
			send_all(conn[i], sum, n * sizeof *sum);
		t[r] = now() - start;
	}
	if (sum[n - 1] != (float)(others + 1))
		die("the sum is wrong");
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}

/* sum-member HOST PORT ELEMENTS ROUNDS: a member of it. Prints "ready" when it is connected. */
void sum_member(char **a)
{
	int fd = tcp_dial(a[0], a[1]);
	size_t n = (size_t)atol(a[2]), rounds = (size_t)atol(a[3]);
	float *own = ones(n), *sum = ones(n);
	puts("ready");
	fflush(stdout);
	for (size_t r = 0; r < rounds; r++) {
		send_all(fd, own, n * sizeof *own);
		if (!receive_all(fd, sum, n * sizeof *sum))
			die("the home is gone");
	}
}
