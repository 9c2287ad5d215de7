/* The raw TCP yardsticks: 4 KiB there and 4 KiB back, or many bytes there and a few back, one at a time. */
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

void send_all(int fd, const void *p, size_t size)
{
	for (size_t n = 0; n < size;) {
		ssize_t r = send(fd, (const char *)p + n, size - n, MSG_NOSIGNAL);
		if (r <= 0)
			die("send");
		n += (size_t)r;
	}
}

int receive_all(int fd, void *p, size_t size)
{
	for (size_t n = 0; n < size;) {
		ssize_t r = read(fd, (char *)p + n, size - n);
		if (r < 0)
			die("read");
		if (r == 0)
			return 0;
		n += (size_t)r;
	}
	return 1;
}

int answer(int fd, const struct sockaddr *at, socklen_t size)
{
	if (bind(fd, at, size) < 0 || listen(fd, 1) < 0)
		die("listen");
	puts("ready");
	fflush(stdout);
	int conn = accept(fd, NULL, NULL);
	if (conn < 0)
		die("accept");
	return conn;
}

int tcp_answer(const char *port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	int conn = answer(fd, (struct sockaddr *)&at, sizeof at);
	no_delay(conn);
	return conn;
}

int tcp_dial(const char *host, const char *port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	inet_pton(AF_INET, host, &to.sin_addr);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
		die("connect");
	no_delay(fd);
	return fd;
}

/* tcp-server PORT: answers one connection, then ends. Prints "ready" when it listens. */
void tcp_server(char **a)
{
	char block[BLOCK];
	int conn = tcp_answer(a[0]);
	while (receive_all(conn, block, BLOCK))
		send_all(conn, block, BLOCK);
}

/* tcp-client HOST PORT N: the median round trip of N, after N/10 to warm up. */
void tcp_client(char **a)
{
	char block[BLOCK];
	memset(block, 7, sizeof block);
	int fd = tcp_dial(a[0], a[1]);
	size_t n = (size_t)atol(a[2]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		send_all(fd, block, BLOCK);
		if (!receive_all(fd, block, BLOCK))
			die("the server is gone");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}

/* tcp-sink PORT BYTES: receives so many at a time, and answers. */
void tcp_sink(char **a)
{
	size_t size = (size_t)atoll(a[1]);
	char *all = malloc(size);
	int conn = tcp_answer(a[0]);
	while (receive_all(conn, all, size))
		send_all(conn, all, 1);
}

/* tcp-source HOST PORT BYTES N: the median time of N to send so many to a tcp-sink until it answers, after N/10 to warm up. The bytes are new each time, as they are to programs that publish. */
void tcp_source(char **a)
{
	size_t size = (size_t)atoll(a[2]), n = (size_t)atol(a[3]), warm = n / 10;
	char *all = malloc(size), done;
	int fd = tcp_dial(a[0], a[1]);
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		memset(all, (int)(i % 251), size);
		send_all(fd, all, size);
		if (!receive_all(fd, &done, 1))
			die("the sink is gone");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}
