/* Groups of programs: how long a barrier takes. */
#define _GNU_SOURCE
#include "bench.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The header of docs/attach.md. */
struct head {
	uint32_t magic;
	uint16_t version, op;
	uint64_t tag, attachment, arg[4];
	uint32_t length;
	int32_t error;
};

enum { JOIN = 14, BARRIER = 16 };

static int connected(const char *mount)
{
	char path[PATH_MAX];
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	snprintf(path, sizeof path, "%s/.dsm/attach", mount);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(to.sun_path, sizeof to.sun_path, f))
		die(path);
	fclose(f);
	to.sun_path[strcspn(to.sun_path, "\n")] = 0;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
		die(to.sun_path);
	return fd;
}

static void ask(int fd, struct head *h, const char *payload)
{
	char packet[sizeof *h + 4096];
	h->magic = 0x414d5344;
	h->version = 1;
	h->length = (uint32_t)strlen(payload);
	memcpy(packet, h, sizeof *h);
	memcpy(packet + sizeof *h, payload, h->length);
	if (send(fd, packet, sizeof *h + h->length, 0) < 0)
		die("send");
	ssize_t n = recv(fd, packet, sizeof packet, 0);
	if (n < (ssize_t)sizeof *h)
		die("recv");
	memcpy(h, packet, sizeof *h);
	if (h->error) {
		fprintf(stderr, "%.*s\n", (int)h->length, packet + sizeof *h);
		exit(1);
	}
}

/* barriers MOUNT PATH SIZE N: joins the group of the file, and prints the median of N barriers. */
void barriers(char **a)
{
	size_t n = (size_t)atol(a[3]), warm = n / 10;
	int64_t *t = calloc(n, sizeof *t);
	int fd = connected(a[0]);
	puts("ready");
	fflush(stdout);
	struct head h = {.op = JOIN, .arg = {(uint64_t)atol(a[2])}};
	ask(fd, &h, a[1]);
	uint64_t member = h.attachment, number = h.arg[2];
	for (size_t i = 0; i < n + warm; i++) {
		int64_t start = now();
		h = (struct head){.op = BARRIER, .attachment = member, .arg = {number + i}};
		ask(fd, &h, "");
		if (i >= warm)
			t[i - warm] = now() - start;
	}
	printf("%lld\n", (long long)median(t, n));
}
