/*
 * Floors for what daemons do for programs: the same processes, hops, wake-ups and copies into memory, and nothing else. A program
 * stores to the memory of a file and tells a process beside it, which compares the pages with its base copy and sends on what changed;
 * a process of the other node puts that into its base copy and into the memory of the reader. A program faults, and a process beside it
 * asks the other node for the page.
 */
#define _GNU_SOURCE
#include "floor.h"
#include "bench.h"

#include <emmintrin.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAGE = FLOOR_PAGE, WORDS = PAGE / 8, MASKED = PAGE / 8, PIECES = 512, PAGES = 512, ANSWER = 64 };

/* Of a page of which most bytes have changed there is a mask before the bytes, a bit for each. */
struct record {
	uint32_t at, size;
};

struct header {
	uint32_t size, last;
};

struct frame {
	int conn, pieces, pages;
	size_t limit, size, used, end; /* when it is sent; of all; of small; where the last record ends if it is a long one */
	struct record *tail;    /* that record */
	struct header header;
	struct iovec piece[PIECES];
	_Alignas(8) char small[FLOOR_FRAME + 8 * PAGE];
};

char *fresh(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static void frame_reset(struct frame *f)
{
	f->pieces = 1;
	f->pages = 0;
	f->size = f->used = f->end = 0;
	f->piece[0] = (struct iovec){&f->header, sizeof f->header};
}

struct frame *frame_to(int conn, size_t bytes)
{
	struct frame *f = malloc(sizeof *f);
	f->limit = bytes / 16 < FLOOR_FRAME ? bytes / 16 : FLOOR_FRAME;
	f->conn = conn;
	frame_reset(f);
	return f;
}

static void frame_send(struct frame *f, uint32_t last)
{
	f->header = (struct header){(uint32_t)f->size, last};
	struct msghdr m = {.msg_iov = f->piece, .msg_iovlen = (size_t)f->pieces};
	while (m.msg_iovlen) {
		ssize_t n = sendmsg(f->conn, &m, MSG_NOSIGNAL);
		if (n < 0)
			die("sendmsg");
		for (; m.msg_iovlen && (size_t)n >= m.msg_iov->iov_len; m.msg_iov++, m.msg_iovlen--)
			n -= (ssize_t)m.msg_iov->iov_len;
		if (m.msg_iovlen) {
			m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + n;
			m.msg_iov->iov_len -= (size_t)n;
		}
	}
	frame_reset(f);
}

void frame_end(struct frame *f) { frame_send(f, 1); }

static void piece(struct frame *f, void *p, size_t size)
{
	struct iovec *last = &f->piece[f->pieces - 1];
	f->size += size;
	if ((char *)last->iov_base + last->iov_len == p)
		last->iov_len += size;
	else
		f->piece[f->pieces++] = (struct iovec){p, size};
}

/* padded is what so many bytes take in a frame: records lie at multiples of 8. */
static size_t padded(size_t size) { return (size + 7) / 8 * 8; }

static void add(struct frame *f, char *from, size_t at, size_t size)
{
	struct record r = {(uint32_t)at, (uint32_t)size};
	int here = size < PAGE;
	char *p = f->small + f->used;
	if (!here && f->end && f->end == at) { /* it goes on */
		f->tail->size += (uint32_t)size;
		f->end += size;
		piece(f, from, size);
		return;
	}
	memcpy(p, &r, sizeof r);
	f->tail = (struct record *)p;
	f->end = here ? 0 : at + size;
	if (here)
		memcpy(p + sizeof r, from, size);
	piece(f, p, sizeof r + (here ? padded(size) : 0));
	f->used += sizeof r + (here ? padded(size) : 0);
	if (!here)
		piece(f, from, size);
}

static uint64_t between(const char *a, const char *b, size_t at)
{
	uint64_t x, y;
	memcpy(&x, a + at, 8);
	memcpy(&y, b + at, 8);
	return x ^ y;
}

/* run returns where bytes end that are all equal, or all differ; eight at a time where it can. */
static size_t run(const char *a, const char *b, size_t at, int differ)
{
	const uint64_t low = 0x0101010101010101u;
	while (at < PAGE) {
		uint64_t x = at % 8 ? 0 : between(a, b, at);
		if (at % 8 == 0 && (differ ? !((x - low) & ~x & (low << 7)) : !x))
			at += 8;
		else if ((a[at] != b[at]) == differ)
			at++;
		else
			break;
	}
	return at;
}

/* mask_page sets the bits of the bytes of a page that differ, and counts them. */
__attribute__((optimize("O3"))) static unsigned mask_page(const char *a, const char *b, uint16_t *mask)
{
	__m128i equal[4], all = _mm_set1_epi8(-1), any = _mm_setzero_si128();
	unsigned n = 0;
	for (size_t i = 0; i < PAGE; i += sizeof equal)
		for (size_t k = 0; k < 4; k++) {
			const char *p = a + i + 16 * k, *q = b + i + 16 * k;
			equal[k] = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), _mm_loadu_si128((const __m128i *)q));
			all = _mm_and_si128(all, equal[k]);
			any = _mm_or_si128(any, equal[k]);
			mask[i / 16 + k] = (uint16_t)~_mm_movemask_epi8(equal[k]);
		}
	if (_mm_movemask_epi8(all) == 0xffff)
		return 0;
	if (_mm_movemask_epi8(any) == 0)
		return PAGE;
	for (size_t i = 0; i < PAGE / 16; i += 4) {
		uint64_t four;
		memcpy(&four, mask + i, sizeof four);
		n += (unsigned)__builtin_popcountll(four);
	}
	return n;
}

/* blend copies the bytes of a page whose bits are set. */
static void blend(char *to, const char *from, const char *mask)
{
	for (size_t i = 0; i < PAGE; i += 8) {
		unsigned char m = (unsigned char)mask[i / 8];
		if (m == 0xff)
			memcpy(to + i, from + i, 8);
		else
			for (size_t k = 0; k < 8; k++)
				if (m >> k & 1)
					to[i + k] = from[i + k];
	}
}

static void add_masked(struct frame *f, char *from, size_t at, const uint16_t *mask)
{
	struct record r = {(uint32_t)at, MASKED + PAGE};
	char *p = f->small + f->used;
	memcpy(p, &r, sizeof r);
	memcpy(p + sizeof r, mask, MASKED);
	f->used += sizeof r + MASKED;
	f->end = 0;
	piece(f, p, sizeof r + MASKED);
	piece(f, from, PAGE);
}

void frame_page(struct frame *f, char *base, const char *mem, size_t at, size_t origin)
{
	uint16_t mask[PAGE / 16];
	_Alignas(64) char new[PAGE]; /* Other programs may store to the page meanwhile. */
	char *old = base + at;
	memcpy(new, mem + at, PAGE);
	unsigned n = mask_page(old, new, mask);
	if (n == 0)
		return;
	if (f->size >= f->limit || f->pages == PAGES || f->pieces > PIECES - 4)
		frame_send(f, 0);
	f->pages++;
	if (n > PAGE / 2) {
		memcpy(old, new, PAGE);
		if (n == PAGE)
			add(f, old, origin + at, PAGE);
		else
			add_masked(f, old, origin + at, mask);
		return;
	}
	for (size_t i = run(old, new, 0, 0), from = i; i < PAGE; i = run(old, new, i, 0), from = i) {
		i = run(old, new, from, 1);
		memcpy(old + from, new + from, i - from);
		add(f, old + from, origin + at + from, i - from);
	}
}

int frame_take(int conn, char *base, char *work, size_t *from, size_t *to)
{
	static _Thread_local char all[2 * FLOOR_FRAME + 64 * PAGE];
	struct header h;
	if (!receive_all(conn, &h, sizeof h))
		return 0;
	if (h.size > sizeof all || (h.size && !receive_all(conn, all, h.size)))
		die("half a frame");
	*from = SIZE_MAX, *to = 0;
	for (size_t i = 0; i < h.size;) {
		struct record r;
		memcpy(&r, all + i, sizeof r);
		const char *p = all + i + sizeof r;
		i += sizeof r + padded(r.size);
		if (r.size == MASKED + PAGE) {
			blend(base + r.at, p + MASKED, p);
			if (work)
				blend(work + r.at, p + MASKED, p);
			r.size = PAGE;
		} else {
			memcpy(base + r.at, p, r.size);
			if (work)
				memcpy(work + r.at, p, r.size);
		}
		*from = *from < r.at ? *from : r.at;
		*to = *to > r.at + r.size ? *to : r.at + r.size;
	}
	return h.last ? 2 : 1;
}

int take_all(int conn, char *base, char *work)
{
	size_t from, to;
	int got;
	while ((got = frame_take(conn, base, work, &from, &to)) == 1)
		;
	return got;
}

/* floor-end PORT FILE BYTES: the process of the other node. It answers each publish. */
void floor_end(char **a)
{
	size_t size = (size_t)atoll(a[2]);
	char *work = map_file(a[1], size), *base = fresh(size), done[ANSWER] = {0};
	for (size_t i = 0; i < size; i += PAGE)
		work[i] = 0; /* the file has its memory */
	int conn = tcp_answer(a[0]);
	while (take_all(conn, base, work))
		send_all(conn, done, ANSWER);
}

/* What a program tells when it attaches: where its mapping is, if its stores are tracked. */
struct hello {
	uint64_t pid, start, size;
};

/* The ioctl of Linux 6.7 that older headers have not. */
struct region {
	uint64_t start, end, categories;
};

struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, returned;
};

#define SCAN_IOCTL _IOWR('f', 16, struct scan)

enum { WRITTEN = 1 << 1, WP_MATCHING = 1 << 0, CHECK_WP_ASYNC = 1 << 1, REGIONS = 1024 };

/* scanned compares and sends the pages that the program has stored to since the last time. */
static void scanned(int pagemap, const struct hello *of, struct frame *f, char *base, const char *mem)
{
	static struct region found[REGIONS];
	for (uint64_t at = of->start, end = of->start + of->size; at < end;) {
		struct scan s = {sizeof s, WP_MATCHING | CHECK_WP_ASYNC, at, end, 0, (uintptr_t)found, REGIONS, 0, 0, WRITTEN, 0, WRITTEN};
		int n = ioctl(pagemap, SCAN_IOCTL, &s);
		if (n < 0)
			die("PAGEMAP_SCAN");
		for (int i = 0; i < n; i++)
			for (uint64_t p = found[i].start; p < found[i].end; p += PAGE)
				frame_page(f, base, mem, p - of->start, 0);
		at = s.walk_end;
	}
}

static struct sockaddr_un name(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	return at;
}

static int beside(const char *path)
{
	struct sockaddr_un at = name(path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	unlink(path);
	return answer(fd, (struct sockaddr *)&at, sizeof at);
}

static int to_beside(const char *path)
{
	struct sockaddr_un at = name(path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("connect");
	return fd;
}

/* floor-daemon SOCKET FILE BYTES HOST PORT: the process beside the program. */
void floor_daemon(char **a)
{
	size_t size = (size_t)atoll(a[2]);
	char *mem = map_file(a[1], size), *base = fresh(size), request[ANSWER];
	struct frame *f = frame_to(tcp_dial(a[3], a[4]), size);
	int conn = beside(a[0]), pagemap = -1;
	struct hello program;
	if (!receive_all(conn, &program, sizeof program))
		die("no program");
	if (program.pid) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%llu/pagemap", (unsigned long long)program.pid);
		if ((pagemap = open(path, O_RDONLY)) < 0)
			die(path);
	}
	while (receive_all(conn, request, ANSWER)) {
		if (pagemap >= 0)
			scanned(pagemap, &program, f, base, mem);
		else
			for (size_t at = 0; at < size; at += PAGE)
				frame_page(f, base, mem, at, 0);
		frame_end(f);
		if (!receive_all(f->conn, request, ANSWER))
			die("the other end is gone");
		send_all(conn, request, ANSWER);
	}
}

/*
 * floor-versions SOCKET FILE BYTES READERS COMPARE: makes a version of the memory of a file, which becomes the base copy while the one of
 * before is retained, and puts it into the memory of readers. COMPARE is 1 if it looks what has changed.
 */
void floor_versions(char **a)
{
	size_t size = (size_t)atoll(a[2]);
	char *mem = map_file(a[1], size), *readers = map_file(a[3], size), *base = fresh(size), *retained = fresh(size), request[ANSWER];
	int compare = atoi(a[4]), conn = beside(a[0]);
	struct hello program;
	if (!receive_all(conn, &program, sizeof program))
		die("no program");
	while (receive_all(conn, request, ANSWER)) {
		for (size_t at = 0; at < size; at += PAGE) {
			uint16_t mask[PAGE / 16];
			memcpy(retained + at, mem + at, PAGE);
			if (!compare || mask_page(base + at, retained + at, mask))
				memcpy(readers + at, retained + at, PAGE);
		}
		char *next = retained;
		retained = base;
		base = next;
		send_all(conn, request, ANSWER);
	}
}

/* floor-reader FILE BYTES SIGHTING ROUNDS: sees each value of the last word. */
void floor_reader(char **a)
{
	size_t size = (size_t)atoll(a[1]);
	volatile uint32_t *p = (volatile uint32_t *)((char *)map_file(a[0], size) + size - sizeof *p);
	struct sighting *s = map_file(a[2], PAGE);
	uint32_t rounds = (uint32_t)atol(a[3]);
	puts("ready");
	fflush(stdout);
	for (uint32_t i = 1; i <= rounds; i++) {
		spin(p, i);
		saw(s, i);
	}
}

static int userfault(uint64_t features)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = features};
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0)
		die("userfaultfd");
	return fd;
}

static void watch(int fd, void *p, size_t size, uint64_t mode)
{
	struct uffdio_register r = {.range = {(uintptr_t)p, size}, .mode = mode};
	if (ioctl(fd, UFFDIO_REGISTER, &r) < 0)
		die("UFFDIO_REGISTER");
}

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t any(void)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state;
}

/* shuffled returns the numbers below n in any order. */
static uint32_t *shuffled(size_t n)
{
	uint32_t *all = calloc(n, sizeof *all);
	for (size_t i = 0; i < n; i++)
		all[i] = (uint32_t)i;
	for (size_t i = n - 1; i > 0; i--) {
		size_t j = any() % (i + 1);
		uint32_t t = all[i];
		all[i] = all[j], all[j] = t;
	}
	return all;
}

static void publish(int fd)
{
	char request[ANSWER] = {0};
	send_all(fd, request, ANSWER);
	if (!receive_all(fd, request, ANSWER))
		die("the process beside is gone");
}

/* floor-writer SOCKET FILE BYTES SIGHTING ROUNDS: as attached-writer, to a floor-daemon or floor-versions. */
void floor_writer(char **a)
{
	size_t size = (size_t)atoll(a[2]), rounds = (size_t)atol(a[4]), warm = rounds / 10;
	char *mem = map_file(a[1], size);
	struct sighting *s = map_file(a[3], PAGE);
	int fd = to_beside(a[0]);
	struct hello h = {0};
	send_all(fd, &h, sizeof h);
	int64_t *t = calloc(rounds, sizeof *t);
	for (uint32_t i = 1; i <= rounds; i++) {
		int64_t start = now();
		for (size_t at = 0; at < size; at += PAGE)
			memset(mem + at, (int)(i % 251), PAGE);
		*(volatile uint32_t *)(mem + size - sizeof i) = i;
		publish(fd);
		t[i - 1] = seen(s, i) - start;
	}
	printf("%lld\n", (long long)median(t + warm, rounds - warm));
}

/*
 * floor-publisher SOCKET FILE BYTES PAGES WORDS ROUNDS: the median of a publish until it is answered, after so many words in so many pages at
 * random places, whose stores are tracked, or in all.
 */
void floor_publisher(char **a)
{
	size_t size = (size_t)atoll(a[2]), pages = (size_t)atol(a[3]), words = (size_t)atol(a[4]), rounds = (size_t)atol(a[5]);
	char *mem = map_file(a[1], size);
	int fd = to_beside(a[0]), tracked = pages < size / PAGE;
	for (size_t at = 0; at < size; at += PAGE)
		mem[at] = 0;
	struct hello h = {0};
	if (tracked) {
		watch(userfault(UFFD_FEATURE_PAGEFAULT_FLAG_WP | 1 << 12 | 1 << 13 | 1 << 15), mem, size, UFFDIO_REGISTER_MODE_WP); /* shmem, unpopulated, async */
		h = (struct hello){(uint64_t)getpid(), (uintptr_t)mem, size};
	}
	send_all(fd, &h, sizeof h);
	publish(fd); /* what is there before, and the first write protection */
	int64_t *t = calloc(rounds, sizeof *t);
	for (size_t i = 0; i < rounds; i++) {
		uint32_t *at = shuffled(size / PAGE);
		for (size_t p = 0; p < pages; p++) {
			uint64_t *w = (uint64_t *)(mem + (size_t)at[p] * PAGE);
			for (size_t k = 0, from = any() % (WORDS - words + 1); k < words; k++)
				w[from + k] = any();
		}
		free(at);
		int64_t start = now();
		publish(fd);
		t[i] = now() - start;
	}
	printf("%lld\n", (long long)median(t, rounds));
}

/* fault-home PORT BYTES: sends each page that it is asked for. */
void fault_home(char **a)
{
	size_t size = (size_t)atoll(a[1]);
	char *all = fresh(size);
	uint64_t request[ANSWER / 8];
	for (size_t at = 0; at < size; at += PAGE)
		*(uint64_t *)(all + at) = at;
	int conn = tcp_answer(a[0]);
	while (receive_all(conn, request, sizeof request))
		send_all(conn, all + request[0], PAGE);
}

/* fault-daemon SOCKET HOST PORT FAULTS: serves so many faults of the program that gives it its userfaultfd. */
void fault_daemon(char **a)
{
	int to = tcp_dial(a[1], a[2]), conn = beside(a[0]), fd = -1;
	char space[CMSG_SPACE(sizeof fd)];
	uint64_t start, request[ANSWER / 8] = {0};
	struct iovec v = {&start, sizeof start};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	if (recvmsg(conn, &m, 0) != sizeof start || !CMSG_FIRSTHDR(&m))
		die("no program");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	char *block = fresh(PAGE);
	for (long left = atol(a[3]); left > 0; left--) {
		struct uffd_msg event;
		if (read(fd, &event, sizeof event) != sizeof event || event.event != UFFD_EVENT_PAGEFAULT)
			die("read a fault");
		uint64_t at = event.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
		request[0] = at - start;
		send_all(to, request, sizeof request);
		if (!receive_all(to, block, PAGE))
			die("the home is gone");
		struct uffdio_copy c = {.dst = at, .src = (uintptr_t)block, .len = PAGE};
		if (ioctl(fd, UFFDIO_COPY, &c) < 0)
			die("UFFDIO_COPY");
	}
}

/* fault-program SOCKET BYTES FAULTS: the median of so many loads from pages at random places, each touched once. */
void fault_program(char **a)
{
	size_t size = (size_t)atoll(a[1]), n = (size_t)atol(a[2]);
	int memory = memfd_create("floor", 0), fd = userfault(0), conn = to_beside(a[0]);
	if (memory < 0 || ftruncate(memory, (off_t)size) < 0)
		die("memfd");
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (p == MAP_FAILED)
		die("mmap");
	watch(fd, p, size, UFFDIO_REGISTER_MODE_MISSING);
	char space[CMSG_SPACE(sizeof fd)];
	uint64_t start = (uintptr_t)p;
	struct iovec v = {&start, sizeof start};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(conn, &m, 0) < 0)
		die("sendmsg");
	uint32_t *order = shuffled(size / PAGE);
	int64_t *t = calloc(n, sizeof *t);
	for (size_t i = 0; i < n; i++) {
		uint64_t at = (uint64_t)order[i] * PAGE;
		int64_t began = now();
		uint64_t got = *(volatile uint64_t *)(p + at);
		t[i] = now() - began;
		if (got != at)
			die("the page is not that of the home");
	}
	printf("%lld\n", (long long)median(t, n));
}
