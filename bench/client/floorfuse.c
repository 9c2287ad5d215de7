/*
 * A floor for publishes through the page cache: a filesystem of one file that takes what the kernel writes, compares it with its base copy and
 * sends on what changed, and one of another node that puts that into its copy and into the kernel's page cache. It speaks FUSE itself.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 1 << 20, NODE = 2, FOREVER = 1 << 20 };

static int device, peer;
static char *base;
static size_t size;

static void reply(uint64_t unique, int error, const void *p, size_t n)
{
	struct fuse_out_header h = {.len = (uint32_t)(sizeof h + n), .error = error, .unique = unique};
	struct iovec v[2] = {{&h, sizeof h}, {(void *)(uintptr_t)p, n}};
	if (writev(device, v, n ? 2 : 1) < 0 && errno != ENOENT) /* ENOENT: nobody waits for it any more */
		die("reply");
}

static void set_bdi(const char *mount, const char *what, const char *value)
{
	struct stat st;
	char path[128];
	if (stat(mount, &st) < 0)
		die(mount);
	snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/%s", major(st.st_dev), minor(st.st_dev), what);
	int fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		die(path);
	close(fd);
}

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr a = {.ino = node, .mode = node == NODE ? S_IFREG | 0644 : S_IFDIR | 0755, .nlink = 1, .blksize = FLOOR_PAGE};
	if (node == NODE)
		a.size = size;
	return a;
}

/* store puts a range of the base copy into the page cache. */
static void store(size_t from, size_t to)
{
	for (size_t n; from < to; from += n) {
		n = to - from < MOST ? to - from : MOST;
		struct fuse_notify_store_out s = {.nodeid = NODE, .offset = from, .size = (uint32_t)n};
		struct fuse_out_header h = {.len = (uint32_t)(sizeof h + sizeof s + n), .error = FUSE_NOTIFY_STORE};
		struct iovec v[3] = {{&h, sizeof h}, {&s, sizeof s}, {base + from, n}};
		if (writev(device, v, 3) < 0 && errno != ENOENT)
			die("store");
	}
}

static void *receive(void *none)
{
	size_t from, to;
	while (frame_take(peer, base, NULL, &from, &to))
		if (from < to)
			store(from, to);
	return none;
}

static void answer_init(uint64_t unique, const struct fuse_init_in *in)
{
	struct fuse_init_out out = {
	    .major = FUSE_KERNEL_VERSION, .minor = 36, .max_readahead = in->max_readahead,
	    .flags = (FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ASYNC_READ | FUSE_EXPLICIT_INVAL_DATA) & in->flags,
	    .max_background = 4096, .congestion_threshold = 4096, .max_write = MOST, .max_pages = MOST / FLOOR_PAGE, .time_gran = 1};
	reply(unique, 0, &out, sizeof out);
}

static void serve(const struct fuse_in_header *h, const void *body, struct frame *f)
{
	const struct fuse_read_in *r = body;
	const struct fuse_write_in *w = body;
	struct fuse_entry_out entry = {.nodeid = NODE, .entry_valid = FOREVER, .attr_valid = FOREVER, .attr = attributes(NODE)};
	struct fuse_attr_out attr = {.attr_valid = FOREVER, .attr = attributes(h->nodeid)};
	struct fuse_open_out open = {.open_flags = FOPEN_KEEP_CACHE};
	struct fuse_write_out written = {0};
	switch (h->opcode) {
	case FUSE_INIT:
		answer_init(h->unique, body);
		return;
	case FUSE_LOOKUP:
		if (strcmp(body, "w"))
			reply(h->unique, -ENOENT, NULL, 0);
		else
			reply(h->unique, 0, &entry, sizeof entry);
		return;
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		reply(h->unique, 0, &attr, sizeof attr);
		return;
	case FUSE_OPEN:
		reply(h->unique, 0, &open, sizeof open);
		return;
	case FUSE_READ:
		reply(h->unique, 0, base + r->offset, r->offset + r->size > size ? size - r->offset : r->size);
		return;
	case FUSE_WRITE:
		written.size = w->size;
		reply(h->unique, 0, &written, sizeof written);
		for (size_t at = 0; at < w->size; at += FLOOR_PAGE)
			frame_page(f, base + w->offset, (const char *)(w + 1), at, w->offset);
		frame_end(f);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	case FUSE_FSYNC:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		reply(h->unique, 0, NULL, 0);
		return;
	default:
		reply(h->unique, -ENOSYS, NULL, 0);
	}
}

static void *serve_all(void *none)
{
	struct frame *f = frame_to(peer, size);
	char *all = fresh(MOST + 2 * FLOOR_PAGE);
	/* What is written lies at the start of a page. */
	char *request = all + FLOOR_PAGE - sizeof(struct fuse_in_header) - sizeof(struct fuse_write_in);
	for (;;) {
		ssize_t n = read(device, request, MOST + FLOOR_PAGE);
		if (n < 0 && errno == ENODEV)
			return none;
		if (n < 0 && errno != EINTR && errno != ENOENT)
			die("read /dev/fuse");
		if (n > 0)
			serve((const struct fuse_in_header *)request, request + sizeof(struct fuse_in_header), f);
	}
}

/* floor-mount DIR BYTES HOST PORT: HOST is - at the node that receives, which prints "ready" when it listens and mounts then; the other prints it when it has mounted. */
void floor_mount(char **a)
{
	char options[128];
	pthread_t server, receiver;
	int receives = strcmp(a[2], "-") == 0;
	size = (size_t)atoll(a[1]);
	base = fresh(size);
	peer = receives ? -1 : tcp_dial(a[2], a[3]);
	if ((device = open("/dev/fuse", O_RDWR | O_CLOEXEC)) < 0)
		die("/dev/fuse");
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", device, MOST);
	if (mount("floor", a[0], "fuse.floor", MS_NOSUID | MS_NODEV, options) < 0)
		die("mount");
	if (receives)
		peer = tcp_answer(a[3]);
	if (pthread_create(&server, NULL, serve_all, NULL))
		die("thread");
	set_bdi(a[0], "strict_limit", "0");
	set_bdi(a[0], "max_ratio", "100");
	if (receives && pthread_create(&receiver, NULL, receive, NULL))
		die("thread");
	if (!receives) {
		puts("ready");
		fflush(stdout);
	}
	pthread_join(server, NULL); /* until it is unmounted */
}
