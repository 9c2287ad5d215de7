/* The memory side of the preloaded library: which ranges of the program are attached, kept in dsmfs.h's own lists under its
   lock. Ranges are split where the program unmaps, protects or moves a part of one, and joined again: pieces.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>

static void *shim_alloc(size_t n);
static void shim_free(void *p);
static void shim_lost(const char *path, const char *text);

#define DSMFS_IMPLEMENTATION
#define DSMFS_API static __attribute__((unused))
#define DSMFS_MALLOC(n) shim_alloc(n)
#define DSMFS_FREE(p) shim_free(p)
#define DSMFS_LOST(path, text) shim_lost(path, text)
#include "../include/dsmfs.h"

#include <sys/vfs.h>

#include "shim.h"

_Static_assert((int)SHIM_GUARDED == (int)DSMFS__GUARDED, "one table");

typedef struct dsmfs__range range;

/* The program's malloc may call munmap, which would need the lock that the caller here holds. So malloc is not used: every
   object has pages of its own. There are few objects. */
static void *shim_alloc(size_t n)
{
    size_t *p = dsmfs__mmap(NULL, n + 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    *p = n + 16;
    return p + 2;
}

static void shim_free(void *p)
{
    if (p)
        syscall(SYS_munmap, (size_t *)p - 2, ((size_t *)p)[-2]);
}

static int is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0");
}

/* Says something once per process, in one write. */
static void say(const char *format, const char *path, const char *text)
{
    static int said;
    char line[700];
    int n;
    if (is_set("DSMFS_QUIET") || __atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        return;
    n = snprintf(line, sizeof line, format, path, text);
    n = n < (int)sizeof line ? n : (int)sizeof line - 1;
    line[n - 1] = '\n';
    if (syscall(SYS_write, 2, line, (size_t)n) < 0)
        return; /* there is nobody to tell */
}

static void shim_lost(const char *path, const char *text)
{
    say("dsmfs: %.200s is not in the memory of this child of fork: %.400s\n", path, text);
}

int shim_active(void) { return __atomic_load_n(&dsmfs__ranges, __ATOMIC_ACQUIRE) && getpid() == dsmfs__pid; }

int shim_guarded(int i) { return __atomic_load_n(&dsmfs__guarded[i], __ATOMIC_ACQUIRE) - 1; }

/* Moves a descriptor of ours to another number, because the program wants its number. Not in a child of vfork, which has the
   parent's memory but its own descriptors: there the number is free. */
int shim_move_guarded(int fd)
{
    uint64_t old;
    struct dsmfs__link *l;
    int to = 0;
    if (getpid() != dsmfs__pid)
        return 1;
    old = dsmfs__lock();
    for (struct dsmfs__link *of = dsmfs__links; of; of = of->next)
        for (l = of; l; l = l == of ? of->coming : NULL)
            if (l->fd == fd && l->guard >= 0) {
                pthread_mutex_lock(&l->mu);
                to = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900);
                if (to >= 0) {
                    l->fd = to;
                    __atomic_store_n(&dsmfs__guarded[l->guard], to + 1, __ATOMIC_RELEASE);
                }
                pthread_mutex_unlock(&l->mu);
            }
    dsmfs__unlock(old);
    return to >= 0;
}

static long code(long r) { return r == -1 ? -errno : r; }

#include "pieces.h"

/* Says which addresses are ours now. To be called before the lock is given back, when the program can get to know new ones. */
static void show(void)
{
    size_t n = 0;
    for (range *r = dsmfs__ranges; r; r = r->next)
        n++;
    if (!shim_show_begin(n))
        return;
    for (range *r = dsmfs__ranges; r; r = r->next)
        shim_show_add(r->addr, end_of(r));
    shim_show_end();
}

/* Takes the lock if [lo, hi) or [to, to_end) may be ours, and returns whether. It looks again while it waits: the table may have been out of date
   at first, and meanwhile the lock may be that of a fork which waits for the caller. */
static int lock_for(const char *lo, const char *hi, const char *to, const char *to_end, uint64_t *old)
{
    while (shim_shows(lo, hi) || shim_shows(to, to_end)) {
        struct timespec t;
        *old = dsmfs__block();
        clock_gettime(CLOCK_REALTIME, &t);
        if ((t.tv_nsec += 10000000) >= 1000000000) {
            t.tv_nsec -= 1000000000;
            t.tv_sec++;
        }
        if (pthread_mutex_timedlock(&dsmfs__maps, &t) == 0)
            return 1;
        dsmfs__restore(*old);
    }
    return 0;
}

/* A call of the program about the pages from lo to hi. If they may be ours the lock is held from enter to leave, which restores errno. */
struct visit {
    char *lo, *hi;
    int locked;
    int ours; /* whether they show something of ours */
    int saved;
    uint64_t signals;
};

static struct visit enter(void *addr, size_t len)
{
    struct visit v = {.lo = addr, .hi = (char *)addr + dsmfs__pages(len), .saved = errno};
    v.locked = lock_for(v.lo, v.hi, NULL, NULL, &v.signals);
    v.ours = v.locked && aligned(addr) && v.lo < v.hi && first_in(v.lo, v.hi);
    return v;
}

static void leave(const struct visit *v)
{
    if (v->locked)
        dsmfs__unlock(v->signals);
    errno = v->saved;
}

/* Ends a call that removes mappings: if it succeeded, they are removed from the list. */
static long replaced(const struct visit *v, long r)
{
    if (v->ours && !shim_failed(r))
        drop_in(v->lo, v->hi);
    if (v->ours) {
        settle(v->lo, v->hi);
        show();
    }
    leave(v);
    return r;
}

long shim_unmap(void *addr, size_t len)
{
    struct visit v = enter(addr, len);
    long r = v.ours ? untrack_in(v.lo, v.hi) : 0;
    return replaced(&v, r ? r : code(syscall(SYS_munmap, addr, len)));
}

/* An mmap with MAP_FIXED that is not ours, over a place where there may be mappings of ours. */
long shim_map_over(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
    struct visit v = enter(addr, len);
    long r = v.ours ? untrack_in(v.lo, v.hi) : 0;
    return replaced(&v, r ? r : code((long)dsmfs__mmap(addr, len, prot, flags, fd, (uint64_t)off)));
}

/* Makes read and write of a descriptor go past the page cache, to the daemon, which has what the program has stored. It sets O_DIRECT,
   which on dsmfs requires no alignment. */
static void bypass(int fd)
{
    int mode = (int)syscall(SYS_fcntl, fd, F_GETFL);
    if (mode >= 0 && !(mode & (O_PATH | O_DIRECT)))
        syscall(SYS_fcntl, fd, F_SETFL, mode | O_DIRECT);
}

/* The same for all descriptors of a file that the program has now. */
static void bypass_all(dev_t dev, ino_t ino)
{
    char buf[2048];
    struct stat s;
    int dir = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    while (dir >= 0 && (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0)
        for (long at = 0; at < n;) {
            unsigned short len;
            const char *name = buf + at + 19; /* struct linux_dirent64 */
            int fd = 0;
            memcpy(&len, buf + at + 16, sizeof len);
            at += len;
            if (*name < '0' || *name > '9')
                continue;
            for (; *name; name++)
                fd = 10 * fd + (*name - '0');
            if (fstat(fd, &s) == 0 && s.st_dev == dev && s.st_ino == ino)
                bypass(fd);
        }
    dsmfs__close(dir);
}

void shim_opened(int fd)
{
    struct stat s;
    int saved = errno, found = 0;
    uint64_t old;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) {
        old = dsmfs__lock();
        for (dsmfs *a = dsmfs__areas; a; a = a->next)
            found |= a->number == s.st_ino && a->device == s.st_dev;
        dsmfs__unlock(old);
        if (found)
            bypass(fd);
    }
    errno = saved;
}

/* Attaches the file at a place, and maps it. With *full set it failed because of what is mapped there. */
static int map_at(struct dsmfs__place *p, const struct stat *s, int mode, void *addr, size_t len, int prot, int flags, off_t off, void **out, int *full)
{
    int err, memfd = -1, access = prot & PROT_WRITE ? DSMFS_WRITE : DSMFS_READ;
    char *lo = addr, *hi = lo + dsmfs__pages(len);
    uint64_t old = dsmfs__lock();
    dsmfs *a = NULL;
    range *r = NULL;
    err = dsmfs__open(p->socket, p->path, s->st_ino, access, &a, &memfd);
    if (!err && a->kind & DSMFS__DIRECT && (mode & O_ACCMODE) == O_RDWR) /* it could not be attached for writing if mprotect wants that */
        err = dsmfs__fail(ENODEV, "it is open with access=direct");
    if (!err && (flags & MAP_FIXED) && aligned(addr) && lo < hi) {
        err = *full = untrack_in(lo, hi); /* the caller finds this error as well */
        if (!err)
            drop_in(lo, hi);
    }
    if (!err)
        err = dsmfs__map(a, memfd, addr, len, prot, flags, (uint64_t)off, &r);
    if (!err) {
        r->upgradable = (mode & O_ACCMODE) == O_RDWR;
        *out = r->addr;
    }
    if (a) {
        a->device = s->st_dev;
        dsmfs__release(a); /* its ranges keep it */
    }
    if (!err)
        bypass_all(s->st_dev, s->st_ino);
    dsmfs__close(memfd);
    settle(lo, hi);
    show();
    dsmfs__unlock(old);
    return err;
}

int shim_map(void *addr, size_t len, int prot, int flags, int fd, off_t off, void **out)
{
    struct statfs fs;
    struct stat s;
    struct dsmfs__place *p;
    int saved = errno, err, full = 0, mode;
    if (syscall(SYS_fstatfs, fd, &fs) < 0 || fs.f_type != 0x65735546 /* FUSE_SUPER_MAGIC */ || fstat(fd, &s) < 0 || !S_ISREG(s.st_mode) ||
        off < 0 || off % (off_t)sysconf(_SC_PAGESIZE) || (mode = (int)syscall(SYS_fcntl, fd, F_GETFL)) < 0 || (mode & O_PATH) ||
        (mode & O_ACCMODE) == O_WRONLY || ((prot & PROT_WRITE) && (mode & O_ACCMODE) != O_RDWR) || !(p = shim_alloc(sizeof *p))) {
        errno = saved;
        return -ENODEV; /* or an error that the kernel finds as well */
    }
    err = dsmfs__find(fd, NULL, p);
    if (err == -ENODEV && !p->path[0]) {
        shim_free(p);
        errno = saved;
        return err;
    }
    if (!err) {
        dsmfs__ready(p->socket);
        do
            err = map_at(p, &s, mode, addr, len, prot, flags, off, out, &full);
        while (err == -ENOTCONN && dsmfs__ready(p->socket));
    }
    if (err && !full)
        say("dsmfs: %.200s stays on the page cache: %.400s\n", p->path, dsmfs__text);
    else if (!err && is_set("DSMFS_VERBOSE"))
        say("dsmfs: %.200s is attached: %.400s\n", p->path, prot & PROT_WRITE ? "for reading and writing" : "for reading");
    shim_free(p);
    errno = saved;
    return err;
}

/* Moves a mapping to another place, over what is mapped there, in one step. */
static int place(range *r, char *at)
{
    if ((char *)syscall(SYS_mremap, r->addr, r->len, r->len, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
        return -errno;
    r->addr = at;
    return 0;
}

/* Attaches again what an attachment has. */
static int reopen(const dsmfs *before, int access, dsmfs **a, int *memfd)
{
    int err = dsmfs__open(before->link->at.sun_path, before->path, before->number, access, a, memfd);
    if (!err)
        (*a)->device = before->device;
    return err;
}

/* Maps a part of r's file by another attachment. */
static int again(const range *r, dsmfs *a, int memfd, size_t len, uint64_t off, range **out)
{
    int err = dsmfs__map(a, memfd, NULL, len, r->prot, MAP_SHARED, off, out);
    if (!err)
        inherit(*out, r);
    return err;
}

/* Replaces all pieces of a mapping for reading by ones that can be made writable: the same memory, through a descriptor that allows it. All,
   so that they can be joined when they have the same protection again. The old ranges are gone afterwards. */
static int upgrade(dsmfs *before)
{
    dsmfs *a;
    int memfd, err = reopen(before, DSMFS_WRITE, &a, &memfd);
    if (err)
        return err;
    before->refs++;
    for (range *r = dsmfs__ranges, *next, *fresh; r && !err; r = next) {
        next = r->next;
        if (r->area != before || (err = again(r, a, memfd, r->len, r->off, &fresh)) < 0)
            continue;
        if ((err = place(fresh, r->addr)) < 0)
            dsmfs__discard(fresh);
        else
            dsmfs__drop(r);
    }
    dsmfs__close(memfd);
    dsmfs__release(before);
    dsmfs__release(a); /* its ranges keep it */
    return err;
}

/* mprotect. It is -ENOTCONN, with the path of the socket, if a daemon is needed and has ended. */
static long protect(void *addr, size_t len, int prot, char *socket)
{
    struct visit v = enter(addr, len);
    long err = 0;
    for (range *r = dsmfs__ranges; v.ours && (prot & PROT_WRITE) && r && !err;) {
        if (!meets(r, v.lo, v.hi) || r->area->access != DSMFS_READ) {
            r = r->next;
            continue;
        }
        memcpy(socket, r->area->link->at.sun_path, sizeof r->area->link->at.sun_path);
        err = !r->upgradable ? -EACCES : upgrade(r->area);
        err = err && err != -ENOTCONN ? -EACCES : err;
        r = dsmfs__ranges;
    }
    if (v.ours && !err)
        err = isolate(v.lo, v.hi, prot);
    if (!err)
        err = code(syscall(SYS_mprotect, addr, len, prot));
    for (range *r = dsmfs__ranges; v.ours && r && !err; r = r->next)
        if (meets(r, v.lo, v.hi))
            r->prot = prot;
    if (v.ours)
        settle(v.lo, v.hi);
    leave(&v);
    return err;
}

long shim_protect(void *addr, size_t len, int prot)
{
    char socket[sizeof ((struct sockaddr_un *)0)->sun_path] = "";
    long err;
    do
        err = protect(addr, len, prot, socket);
    while (err == -ENOTCONN && *socket && dsmfs__ready(socket));
    return err == -ENOTCONN ? -EACCES : err;
}

/* mremap of a mapping on demand to a larger size, or to a second mapping: nobody would serve the pages that the kernel adds. So the area is
   mapped again, and the old mapping unmapped. */
static long regrown(range *r, char *lo, size_t new_len, int flags, char *at)
{
    range *fresh;
    dsmfs *a;
    int err, memfd;
    if (!(flags & MREMAP_MAYMOVE))
        return -ENOMEM; /* as if there were no room after it */
    if ((flags & MREMAP_FIXED) && at < end_of(r) && r->addr < at + dsmfs__pages(new_len))
        return -EINVAL;
    if (reopen(r->area, r->area->access, &a, &memfd) < 0)
        return -ENOMEM;
    err = again(r, a, memfd, new_len, r->off + (uint64_t)(lo - r->addr), &fresh);
    dsmfs__close(memfd);
    dsmfs__release(a); /* its range keeps it */
    if (err < 0)
        return -ENOMEM;
    if ((flags & MREMAP_FIXED) && (err = place(fresh, at)) < 0) {
        dsmfs__discard(fresh);
        return err;
    }
    return (long)fresh->addr;
}

/* Takes note of where what was mapped from lo on, in the range, is mapped now, or a second time. */
static long moved(range *r, const char *lo, long p, size_t new_len, int copy)
{
    if (copy) { /* with an old length of 0 it may begin inside of the range */
        range *second = dsmfs__range(r->area, (char *)p, new_len, r->off + (uint64_t)(lo - r->addr), r->prot);
        if (!second) {
            syscall(SYS_munmap, p, new_len);
            return -ENOMEM;
        }
        inherit(second, r);
    } else {
        r->addr = (char *)p;
        r->len = dsmfs__pages(new_len);
    }
    syscall(SYS_madvise, p, new_len, MADV_DONTFORK);
    return p;
}

long shim_remap(void *addr, size_t old_len, size_t new_len, int flags, void *at)
{
    char *lo = addr, *hi = lo + (old_len ? dsmfs__pages(old_len) : 1), *to = at, *to_end = to + dsmfs__pages(new_len);
    int saved = errno, copy = !old_len || (flags & MREMAP_DONTUNMAP);
    uint64_t old;
    range *r;
    long p = 0;
    if (!lock_for(lo, hi, to, to_end, &old)) {
        p = code((long)syscall(SYS_mremap, addr, old_len, new_len, flags, at));
        errno = saved;
        return p;
    }
    join(lo + 1, hi - 1, 1);
    r = aligned(addr) ? first_in(lo, hi) : NULL;
    if (r && (lo < r->addr || end_of(r) < hi))
        p = -EFAULT; /* as for several mappings of the kernel */
    if (!p && r && old_len)
        p = isolate(lo, hi, KEPT);
    if (!p && r && copy && crowded(lo, hi, KEPT, 1))
        p = -ENOMEM;
    if (!p && r) {
        r = first_in(lo, hi);
        dsmfs__untrack(r); /* also to copy it: the kernel would hand the tracking on */
    }
    if (!p && (flags & MREMAP_FIXED) && aligned(at) && to < to_end && (to >= hi || to_end <= lo)) {
        p = untrack_in(to, to_end);
        if (!p)
            drop_in(to, to_end);
    }
    if (!p && r && on_demand(r) && (copy || dsmfs__pages(new_len) > dsmfs__pages(old_len))) {
        p = regrown(r, lo, new_len, flags, to);
        if (!copy && !shim_failed(p))
            dsmfs__discard(r);
    } else if (!p) {
        p = code((long)syscall(SYS_mremap, addr, old_len, new_len, flags, at));
        if (r && !shim_failed(p))
            p = moved(r, lo, p, new_len, copy);
    }
    settle(lo, hi);
    settle(to, to_end);
    show();
    dsmfs__unlock(old);
    errno = saved;
    return p;
}

int shim_keeps(void *addr, size_t len)
{
    struct visit v = enter(addr, len);
    int found = 0;
    for (range *r = dsmfs__ranges; r && v.ours; r = r->next)
        found |= meets(r, v.lo, v.hi) && on_demand(r);
    leave(&v);
    return found;
}

int shim_set_fork(void *addr, size_t len, int fork)
{
    struct visit v = enter(addr, len);
    size_t found = 0;
    int err = v.ours ? isolate(v.lo, v.hi, KEPT) : 0;
    for (range *r = dsmfs__ranges; v.ours && r && !err; r = r->next)
        if (meets(r, v.lo, v.hi)) {
            r->nofork = !fork;
            found += r->len;
        }
    if (v.ours)
        settle(v.lo, v.hi);
    leave(&v);
    return err ? err : found && found == (size_t)(v.hi - v.lo);
}

/* Publishes each chosen area through one of its attachments, with no lock held. It goes in the order of mount and number, so that
   other threads may attach and detach meanwhile. */
static int sync_areas(int (*chosen)(const dsmfs *, const void *), const void *arg)
{
    int saved = errno, err = 0, any = 0;
    dev_t device = 0;
    uint64_t number = 0, old = dsmfs__lock();
    for (;;) {
        dsmfs *next = NULL, *a;
        for (a = dsmfs__areas; a; a = a->next)
            if (chosen(a, arg) && (!any || a->device > device || (a->device == device && a->number > number)) &&
                (!next || a->device < next->device || (a->device == next->device && a->number < next->number) ||
                 (a->device == next->device && a->number == next->number && a->access > next->access)))
                next = a;
        if (!next)
            break;
        any = 1;
        device = next->device;
        number = next->number;
        next->refs++;
        dsmfs__unlock(old);
        int64_t r = dsmfs_sync(next);
        err = r < 0 && !err ? (int)r : err;
        old = dsmfs__lock();
        dsmfs__release(next);
    }
    dsmfs__unlock(old);
    errno = saved;
    return err;
}

struct interval { char *lo, *hi; };

static int shows(const dsmfs *a, const void *arg)
{
    const struct interval *i = arg;
    for (range *r = dsmfs__ranges; r; r = r->next)
        if (r->area == a && meets(r, i->lo, i->hi))
            return 1;
    return 0;
}

int shim_sync_range(void *addr, size_t len)
{
    struct interval i = {addr, (char *)addr + dsmfs__pages(len)};
    return sync_areas(shows, &i);
}

struct inode { dev_t dev; ino_t ino; };

static int is_inode(const dsmfs *a, const void *arg)
{
    const struct inode *i = arg;
    return a->number == i->ino && a->device == i->dev;
}

int shim_sync_inode(dev_t dev, ino_t ino)
{
    struct inode i = {dev, ino};
    return sync_areas(is_inode, &i);
}
