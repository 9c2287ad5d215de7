/* Adds 1 to every element of a file of int64, again and again, as a training step does it: it loads all of them into memory of its own,
   takes its time, stores the sums back, and syncs. Or reads the file again and again in every way there is, until it is killed.

   worker FILE cache|memory ROUNDS
   worker FILE read */
#define DSMFS_IMPLEMENTATION
#include "dsmfs.h"

#include <err.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int64_t *map(const char *path, int flags, int prot, size_t *n)
{
    struct stat s;
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) < 0)
        err(1, "%s", path);
    *n = (size_t)s.st_size;
    void *p = mmap(NULL, *n, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        err(1, "mmap %s", path);
    close(fd);
    return p;
}

static void read_all(const char *path)
{
    int64_t sink = 0;
    for (;;) {
        size_t n;
        dsmfs *area;
        int64_t *w = map(path, O_RDONLY, PROT_READ, &n);
        sink += *(volatile int64_t *)&w[n / 8 - 1];
        munmap(w, n);
        if (dsmfs_attach(NULL, path, DSMFS_READ, &area) < 0)
            errx(1, "attach: %s", dsmfs_error());
        sink += *(volatile int64_t *)dsmfs_data(area);
        if (dsmfs_version(area) < 0 || dsmfs_acquire(area) < 0 || dsmfs_sync(area) < 0)
            errx(1, "a request for reading: %s (%d)", dsmfs_error(), (int)sink);
        dsmfs_detach(area);
        usleep(2000);
    }
}

int main(int argc, char **argv)
{
    dsmfs *area = NULL;
    int64_t *w, *own;
    size_t n;
    if (argc < 3)
        errx(2, "usage");
    if (!strcmp(argv[2], "read"))
        read_all(argv[1]);
    if (!strcmp(argv[2], "memory")) {
        if (dsmfs_attach(NULL, argv[1], DSMFS_WRITE, &area) < 0)
            errx(1, "attach: %s", dsmfs_error());
        w = dsmfs_data(area);
        n = dsmfs_size(area);
    } else
        w = map(argv[1], O_RDWR, PROT_READ | PROT_WRITE, &n);
    own = malloc(n);
    for (int i = 0, rounds = atoi(argv[3]); i < rounds; i++) {
        memcpy(own, w, n);
        usleep(1000);
        for (size_t k = 0; k < n / 8; k++)
            w[k] = own[k] + 1;
        if (area ? dsmfs_sync(area) < 0 : msync(w, n, MS_SYNC) < 0)
            err(1, "sync: %s", area ? dsmfs_error() : "");
    }
    return 0;
}
