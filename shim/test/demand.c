/* A program that knows nothing of dsmfs, with a file of which pages come when they are touched: 8-byte words, each its own number. The tests run it
   with the library preloaded. It does to mappings what would leave a page without anybody who brings it. Usage: demand FILE, or demand FILE reads for one
   who may not write the file and so has it on the page cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PART = 64 * PAGE };

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))
#define FAILS(x, e) (errno = 0, CHECK((long)(x) == -1 && errno == (e)))

static void fail(int line, const char *what)
{
    fprintf(stderr, "demand.c:%d: %s (errno %d, %s)\n", line, what, errno, strerror(errno));
    _exit(1);
}

static int is_attached(void *p)
{
    char text[512];
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    while (!found && fgets(text, sizeof text, f)) {
        unsigned long lo, hi, at = (unsigned long)p;
        CHECK(sscanf(text, "%lx-%lx", &lo, &hi) == 2);
        found = lo <= at && at < hi && strstr(text, "/memfd:");
    }
    fclose(f);
    return found;
}

/* Each step has a part of the file for itself, of which nothing was touched before. */
static off_t part;
static uint64_t first;

static void next_part(void)
{
    part += PART;
    first = (uint64_t)part / 8;
}

static uint64_t *map(int fd, size_t len, int prot, int flags)
{
    uint64_t *p = mmap(NULL, len, prot, MAP_SHARED | flags, fd, part);
    CHECK(p != MAP_FAILED && is_attached(p));
    return p;
}

static void whole(const uint64_t *p, size_t from, size_t to)
{
    for (size_t i = from * WORDS; i < to * WORDS; i++)
        CHECK(p[i] == first + i);
}

static volatile uint64_t *watched;
static int stop;

/* Reads all the time, while the mapping is changed under it. */
static void *reader(void *arg)
{
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        for (size_t i = 0; i < 32 * WORDS; i += WORDS)
            CHECK(watched[i] == first + i);
    return arg;
}

int main(int argc, char **argv)
{
    int fd, ro, status;
    uint64_t *p, *q, *room;
    pthread_t t;
    pid_t pid;
    CHECK(argc >= 2 && (ro = open(argv[1], O_RDONLY)) >= 0);
    if (argc == 3) {
        p = mmap(NULL, PART, PROT_READ, MAP_SHARED, ro, 0);
        CHECK(p != MAP_FAILED && !is_attached(p));
        whole(p, 0, 64);
        return 0;
    }
    CHECK((fd = open(argv[1], O_RDWR)) >= 0);

    p = map(ro, PART, PROT_READ, MAP_POPULATE); /* which would touch it before anybody serves it */
    whole(p, 0, 64);
    FAILS(mprotect(p, PAGE, PROT_READ | PROT_WRITE), EACCES);
    next_part();

    p = map(fd, PART, PROT_READ, 0); /* cut in three, and what is left is served on */
    CHECK(munmap(p + 20 * WORDS, PAGE) == 0);
    whole(p, 0, 20);
    whole(p, 21, 64);
    next_part();

    p = map(fd, PART, PROT_READ, 0); /* made writable while another thread reads */
    watched = p;
    CHECK(pthread_create(&t, NULL, reader, NULL) == 0);
    CHECK(mprotect(p + 8 * WORDS, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(mprotect(p + 16 * WORDS, 48 * PAGE, PROT_READ | PROT_WRITE) == 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(t, NULL) == 0);
    p[50 * WORDS] = 1;
    CHECK(msync(p, PART, MS_SYNC) == 0 && p[50 * WORDS] == 1);
    p[50 * WORDS] = first + 50 * WORDS;
    CHECK(mprotect(p, PART, PROT_NONE) == 0 && mprotect(p, PART, PROT_READ) == 0);
    whole(p, 0, 64);
    next_part();

    p = map(fd, PART / 2, PROT_READ | PROT_WRITE, 0);
    FAILS(mremap(p, PART / 2, PART, 0), ENOMEM);
    q = mremap(p, PART / 2, PART, MREMAP_MAYMOVE); /* grown, moved in part, doubled, shrunk */
    CHECK(q != MAP_FAILED && is_attached(q) && (q == p || !is_attached(p)));
    CHECK(q[63 * WORDS] == first + 63 * WORDS);
    room = mmap(NULL, PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap(q + 8 * WORDS, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK(!is_attached(q + 8 * WORDS) && is_attached(q) && is_attached(q + 16 * WORDS));
    for (size_t i = 0; i < 8 * WORDS; i++)
        CHECK(room[i] == first + 8 * WORDS + i);
    CHECK((p = mremap(q + 32 * WORDS, 0, 16 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED && p != q);
    for (size_t i = 0; i < 16 * WORDS; i++)
        CHECK(p[i] == first + 32 * WORDS + i);
    p[0] = 5;
    CHECK(q[32 * WORDS] == 5);
    p[0] = first + 32 * WORDS;
    CHECK(mremap(p, 16 * PAGE, 4 * PAGE, 0) == p && !is_attached(p + 4 * WORDS));
    whole(q, 16, 64);
    next_part();

    p = map(fd, PART, PROT_READ | PROT_WRITE, 0);
    FAILS(madvise(p, PAGE, MADV_REMOVE), EOPNOTSUPP);
    CHECK(mprotect(p + 32 * WORDS, 32 * PAGE, PROT_READ) == 0);
    CHECK((pid = fork()) >= 0);
    if (pid == 0) { /* the child has them as its parent had */
        whole(p, 0, 64);
        p[1] = 3;
        CHECK(msync(p, PAGE, MS_SYNC) == 0);
        _exit(4);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 4 && p[1] == 3);
    p[1] = first + 1;
    whole(p, 0, 64);
    next_part();

    room = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mmap(room, PART, PROT_READ, MAP_SHARED | MAP_FIXED, fd, part) == room && is_attached(room));
    whole(room, 0, 64);
    CHECK(munmap(room, PART) == 0);
    close(fd);
    close(ro);
    return 0;
}
