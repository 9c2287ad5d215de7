/* The raw TCP yardstick: 4 KiB there and 4 KiB back, one at a time. */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static void no_delay(int fd)
{
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
		die("TCP_NODELAY");
}

static void send_all(int fd, const char *p)
{
	for (size_t n = 0; n < BLOCK;) {
		ssize_t r = write(fd, p + n, BLOCK - n);
		if (r <= 0)
			die("write");
		n += (size_t)r;
	}
}

/* receive_all returns 0 at the end of the connection. */
static int receive_all(int fd, char *p)
{
	for (size_t n = 0; n < BLOCK;) {
		ssize_t r = read(fd, p + n, BLOCK - n);
		if (r < 0)
			die("read");
		if (r == 0)
			return 0;
		n += (size_t)r;
	}
	return 1;
}

/* tcp-server PORT: answers one connection, then ends. Prints "ready" when it listens. */
void tcp_server(char **a)
{
	char block[BLOCK];
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(a[0]))};
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1) < 0)
		die("listen");
	puts("ready");
	fflush(stdout);
	int conn = accept(fd, NULL, NULL);
	if (conn < 0)
		die("accept");
	no_delay(conn);
	while (receive_all(conn, block))
		send_all(conn, block);
}

/* tcp-client HOST PORT N: the median round trip of N, after N/10 to warm up. */
void tcp_client(char **a)
{
	char block[BLOCK];
	memset(block, 7, sizeof block);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(a[1]))};
	inet_pton(AF_INET, a[0], &to.sin_addr);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
		die("connect");
	no_delay(fd);
	size_t n = (size_t)atol(a[2]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		send_all(fd, block);
		if (!receive_all(fd, block))
			die("the server is gone");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}
