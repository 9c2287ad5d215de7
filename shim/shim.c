/*
The library that dsmfs run preloads into programs. It replaces the calls of libc with which programs map files, so that a
shared mapping of a file in a dsmfs mount is the node's working copy itself: the memory plane, without any change to the program.

    program ── mmap(fd, MAP_SHARED) ──> attach, memfd, mmap at the same place with the same flags
            ── msync, fsync ─────────-> SYNC, then the kernel's call
            ── munmap, mremap, mprotect, madvise: the daemon is told, then the kernel's call
            ── open, fopen of a file that is mapped: O_DIRECT, so that read and write see what the mapping has
            ── read, write, ftruncate: not touched; FUSE serves them from the same memory

A file that cannot be attached stays a mapping of the kernel's page cache, and one line on stderr says why. A child of fork attaches again
by itself (dsmfs.h). The real calls, except fopen's, are made as raw system calls and not by dlsym. So no call comes back here, none comes
too early, and none allocates. The price is that open, msync, fsync and close are not cancellation points of threads.

DSMFS_QUIET=1 silences the line; DSMFS_VERBOSE=1 prints a line on success as well.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* result is what libc makes of a system call's. */
static long result(long r)
{
    if (!shim_failed(r))
        return r;
    errno = (int)-r;
    return -1;
}

/* raw is syscall(2), but returns -errno and does not change errno. */
static long raw(long number, long a, long b, long c, long d, long e, long f)
{
    int saved = errno;
    long r = syscall(number, a, b, c, d, e, f);
    if (r == -1)
        r = -errno;
    errno = saved;
    return r;
}

#define RAW(number, a, b, c, d, e, f) raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

EXPORT void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
    int type = flags & MAP_TYPE;
    void *p;
    if (fd >= 0 && len && (type == MAP_SHARED || type == MAP_SHARED_VALIDATE) &&
        !(flags & (MAP_ANONYMOUS | MAP_HUGETLB | MAP_SYNC)) && !(prot & PROT_EXEC) && shim_map(addr, len, prot, flags, fd, off, &p) == 0)
        return p;
    if ((flags & MAP_FIXED) && shim_active())
        return (void *)result(shim_map_over(addr, len, prot, flags, fd, off));
    return (void *)result(RAW(SYS_mmap, addr, len, prot, flags, fd, off));
}

EXPORT void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off) __attribute__((alias("mmap")));

EXPORT int munmap(void *addr, size_t len)
{
    return (int)result(shim_active() ? shim_unmap(addr, len) : RAW(SYS_munmap, addr, len, 0, 0, 0, 0));
}

EXPORT void *mremap(void *old, size_t old_len, size_t new_len, int flags, ...)
{
    void *at = NULL;
    if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
        va_list args;
        va_start(args, flags);
        at = va_arg(args, void *);
        va_end(args);
    }
    return (void *)result(shim_active() ? shim_remap(old, old_len, new_len, flags, at) : RAW(SYS_mremap, old, old_len, new_len, flags, at, 0));
}

EXPORT int mprotect(void *addr, size_t len, int prot)
{
    return (int)result(shim_active() ? shim_protect(addr, len, prot) : RAW(SYS_mprotect, addr, len, prot, 0, 0, 0));
}

/* The kernel checks the arguments. MS_ASYNC publishes like MS_SYNC, because nobody else would do so later. */
EXPORT int msync(void *addr, size_t len, int flags)
{
    long r = RAW(SYS_msync, addr, len, flags, 0, 0, 0);
    if (r == 0 && shim_active() && flags & (MS_SYNC | MS_ASYNC))
        r = shim_sync_range(addr, len);
    return (int)result(r);
}

/* What a program says about fork is recorded here, because all our mappings have MADV_DONTFORK in the kernel. Other advice acts on a
   memfd as on a file: DONTNEED drops the mapping of pages but not what is stored in them. REMOVE punches a hole, which in an area on demand
   is not a page of zeroes. */
EXPORT int madvise(void *addr, size_t len, int advice)
{
    if ((advice == MADV_DOFORK || advice == MADV_DONTFORK) && shim_active()) {
        int r = shim_set_fork(addr, len, advice == MADV_DOFORK);
        if (r)
            return (int)result(r < 0 ? r : 0);
    }
    if (advice == MADV_REMOVE && shim_active() && shim_keeps(addr, len))
        return (int)result(-EOPNOTSUPP);
    return (int)result(RAW(SYS_madvise, addr, len, advice, 0, 0, 0));
}

static int opened(long fd)
{
    if (fd >= 0 && shim_active())
        shim_opened((int)fd);
    return (int)result(fd);
}

/* The mode of a file that an open may make. */
#define MODE(mode, flags)                                \
    do {                                                 \
        if ((flags) & (O_CREAT | __O_TMPFILE)) {         \
            va_list args;                                \
            va_start(args, flags);                       \
            mode = va_arg(args, mode_t);                 \
            va_end(args);                                \
        }                                                \
    } while (0)

EXPORT int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(mode, flags);
    return opened(RAW(SYS_openat, AT_FDCWD, path, flags, mode, 0, 0));
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(mode, flags);
    return opened(RAW(SYS_openat, dir, path, flags, mode, 0, 0));
}

EXPORT int open64(const char *path, int flags, ...) __attribute__((alias("open")));
EXPORT int openat64(int dir, const char *path, int flags, ...) __attribute__((alias("openat")));

EXPORT int creat(const char *path, mode_t mode)
{
    return opened(RAW(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode, 0, 0));
}

EXPORT int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));

/* Those of _FORTIFY_SOURCE. */
EXPORT int __open_2(const char *path, int flags) { return opened(RAW(SYS_openat, AT_FDCWD, path, flags, 0, 0, 0)); }
EXPORT int __open64_2(const char *path, int flags) { return opened(RAW(SYS_openat, AT_FDCWD, path, flags, 0, 0, 0)); }
EXPORT int __openat_2(int dir, const char *path, int flags) { return opened(RAW(SYS_openat, dir, path, flags, 0, 0, 0)); }
EXPORT int __openat64_2(int dir, const char *path, int flags) { return opened(RAW(SYS_openat, dir, path, flags, 0, 0, 0)); }

static FILE *opened_file(FILE *f)
{
    if (f && shim_active())
        shim_opened(fileno(f));
    return f;
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen64");
    return opened_file(real(path, mode));
}

EXPORT FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

EXPORT FILE *freopen(const char *path, const char *mode, FILE *f)
{
    FILE *(*real)(const char *, const char *, FILE *) = dlsym(RTLD_NEXT, "freopen64");
    return opened_file(real(path, mode, f));
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *f) __attribute__((alias("freopen")));

static int sync_file(int fd, long number)
{
    struct stat s;
    int saved = errno;
    long r = 0, real;
    if (shim_active() && fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
        r = shim_sync_inode(s.st_dev, s.st_ino);
    errno = saved;
    real = RAW(number, fd, 0, 0, 0, 0, 0);
    return (int)result(r < 0 ? r : real);
}

EXPORT int fsync(int fd) { return sync_file(fd, SYS_fsync); }
EXPORT int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

/* Programs that become daemons close all descriptors. Closing the library's own would silently end the attachments. So these
   are not closed: to the program they do not exist. */

static int is_guarded(int fd)
{
    for (int i = 0; fd >= 0 && i < SHIM_GUARDED; i++)
        if (shim_guarded(i) == fd)
            return 1;
    return 0;
}

EXPORT int close(int fd) { return (int)result(is_guarded(fd) ? -EBADF : RAW(SYS_close, fd, 0, 0, 0, 0, 0)); }

EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
    while (first <= last) {
        unsigned int end = last;
        long r = 0;
        for (int i = 0; i < SHIM_GUARDED && !(flags & CLOSE_RANGE_CLOEXEC); i++) {
            int fd = shim_guarded(i);
            if (fd >= 0 && (unsigned int)fd >= first && (unsigned int)fd <= end)
                end = (unsigned int)fd;
        }
        if (is_guarded((int)end) && !(flags & CLOSE_RANGE_CLOEXEC))
            r = end > first ? RAW(SYS_close_range, first, end - 1, flags, 0, 0, 0) : 0;
        else
            r = RAW(SYS_close_range, first, end, flags, 0, 0, 0);
        if (r < 0 || end == last)
            return (int)result(r);
        first = end + 1;
    }
    return (int)result(RAW(SYS_close_range, first, last, flags, 0, 0, 0)); /* EINVAL */
}

EXPORT void closefrom(int first)
{
    int saved = errno;
    if (first < 0)
        first = 0;
    if (close_range((unsigned int)first, UINT_MAX, 0) < 0) /* before Linux 5.9 */
        for (long fd = first, end = sysconf(_SC_OPEN_MAX); fd < end; fd++)
            close((int)fd);
    errno = saved;
}

EXPORT int dup2(int old, int new)
{
    if (old != new && is_guarded(new) && !shim_move_guarded(new))
        return (int)result(-EBUSY);
    return (int)result(old == new ? RAW(SYS_fcntl, old, 1 /* F_GETFD */, 0, 0, 0, 0) < 0 ? -EBADF : new : RAW(SYS_dup3, old, new, 0, 0, 0, 0));
}

EXPORT int dup3(int old, int new, int flags)
{
    if (old != new && is_guarded(new) && !shim_move_guarded(new))
        return (int)result(-EBUSY);
    return (int)result(RAW(SYS_dup3, old, new, flags, 0, 0, 0));
}
