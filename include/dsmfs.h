/*
dsmfs.h - memory that many machines share, at the speed of memory. One header, C99 and up, Linux, 64 bits.

In one C file of the program, before anything else is included (it defines _GNU_SOURCE):

    #define DSMFS_IMPLEMENTATION
    #include "dsmfs.h"

and plain #include "dsmfs.h" elsewhere, also in C++. Link with -pthread. An area is a file of a dsmfs mount:

    dsmfs *w;
    if (dsmfs_attach(NULL, "/mnt/dsm/w", DSMFS_WRITE, &w) < 0)
        errx(1, "%s", dsmfs_error());
    float *x = dsmfs_data(w);
    x[0] += 1;              // a plain store: no system call, no copy
    dsmfs_sync(w);          // others see it, and their stores are in x

Results: 0 or a version, or -errno; dsmfs_error() then has a text for people. All functions but dsmfs_detach may be
called by any number of threads at the same time. Signal handlers may call dsmfs_publish, dsmfs_acquire, dsmfs_sync and nothing else.

fork: the child attaches again at the same addresses before fork returns in it, and is then tracked like its parent. Where that fails its memory
there is PROT_NONE: SIGSEGV, never zeroes, and requests fail with -ENOTCONN. A child made by a bare clone(2) has no mapping at all.

When the daemon ends, requests fail with -ENOTCONN; the memory stays readable and writable, but is this process's own. On a mount with a holder another daemon
follows: then requests wait for that one, and go on. Only a timeout ends that, and what the program does with signals. dsmfs_detach, munmap, fork and exit do not wait.

Of an area with user.dsm.residency=demand a node keeps what its programs touch, and the rest comes when it is touched: the thread waits. What does not come
within --fault-timeout of the daemon is SIGBUS at that page, until madvise(page, 4096, MADV_DONTNEED); then the next touch asks again. So is, for good,
what was not there when the daemon ended. A handler (SA_SIGINFO; si_addr is the address) may siglongjmp out of a loop of the program's own; without one the
process ends. System calls that touch such a page fail with EFAULT, and where userfaultfd is allowed without privilege only (no CAP_SYS_PTRACE,
/dev/userfaultfd not open to the user) so do those that touch one which is not there yet: touch it first. Attaching it, also with DSMFS_READ, takes permission to write
the file: -ENODEV without. Nothing may be done to its mapping that makes another of it: no mremap that grows or doubles it; moving it is fine.

Settings, as macros: DSMFS_MALLOC(n) and DSMFS_FREE(p), used on attach and detach only; DSMFS_API, before every function,
such as static; DSMFS_LOST(path, text), called in a child of fork for each area that could not be attached again.
The protocol is in docs/attach.md.
*/
#ifndef DSMFS_H
#define DSMFS_H

#if defined DSMFS_IMPLEMENTATION && !defined _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>

#ifndef DSMFS_API
#define DSMFS_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsmfs dsmfs; /* an attached area, mapped as a whole */

enum { DSMFS_READ = 1, DSMFS_WRITE = 3 }; /* access; DSMFS_WRITE may read, too */
enum { DSMFS_EXCL = 1 };                  /* flag of dsmfs_create: fail with -EEXIST */

/* Attaches and maps an existing area. With socket NULL it is found: $DSMFS_ATTACH if set, or that of the mount in which path
   lies. With a socket, or $DSMFS_ATTACH and a path in no mount, path is from the root of the filesystem: "/w". */
DSMFS_API int dsmfs_attach(const char *socket, const char *path, int access, dsmfs **out);

/* Makes a file of size zero bytes; attach it then. settings is NULL or lines "mode relaxed\nmerge sum\ndtype f32\n". */
DSMFS_API int dsmfs_create(const char *socket, const char *path, uint64_t size, unsigned perm, int flags, const char *settings);

/* Where it is mapped, until dsmfs_detach or dsmfs_resize, and its length. NULL for an empty area. */
DSMFS_API void *dsmfs_data(dsmfs *a);
DSMFS_API size_t dsmfs_size(dsmfs *a);

DSMFS_API int64_t dsmfs_publish(dsmfs *a); /* returns once others can see what was stored before */
DSMFS_API int64_t dsmfs_acquire(dsmfs *a); /* returns once what others published before is in memory */
DSMFS_API int64_t dsmfs_sync(dsmfs *a);    /* what msync does: publish, and acquire */

/* Waits until the area has the version, at most timeout_ms; 0: no limit. -ETIMEDOUT. Signal handlers run meanwhile;
   they must not longjmp out of it. */
DSMFS_API int64_t dsmfs_wait(dsmfs *a, int64_t version, int64_t timeout_ms);

DSMFS_API int64_t dsmfs_version(dsmfs *a); /* that is here now */

/* Writes "name value" lines to buf, ended by a zero byte; returns their length without it. What does not fit is cut. */
DSMFS_API int dsmfs_stats(dsmfs *a, char *buf, size_t n);

/* Changes the size for all nodes and maps the area again: dsmfs_data and dsmfs_size change, so no other thread may use it meanwhile. */
DSMFS_API int dsmfs_resize(dsmfs *a, uint64_t size);

/* Unmaps the area and frees the handle, whatever is returned. Stores that were not published stay in the working copy of this
   machine and are published later. To be certain that they are, call dsmfs_publish before. */
DSMFS_API int dsmfs_detach(dsmfs *a);

/* Why the last call of this thread failed. Valid until its next call that fails. */
DSMFS_API const char *dsmfs_error(void);

#ifdef __cplusplus
}
#endif
#endif /* DSMFS_H */

#ifdef DSMFS_IMPLEMENTATION

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if !defined __linux__ || !defined __LP64__ || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dsmfs.h needs Linux, 64 bits, little-endian"
#endif
#ifndef DSMFS_MALLOC
#define DSMFS_MALLOC(n) malloc(n)
#define DSMFS_FREE(p) free(p)
#endif
#ifndef DSMFS_LOST
#define DSMFS_LOST(path, text) ((void)(path), (void)(text))
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* Locks. dsmfs__maps guards the lists of areas, links and ranges. It is held over everything that changes what is mapped,
   including requests; fork takes it. All signals are blocked before it is taken, never while it is held, so that no handler can need it
   in the thread that holds it. link.mu may be taken inside it, guards the waiters, and is held for moments only.

   Where another daemon follows, its link takes the areas of the lost one: see dsmfs__follow. So a request that does not hold dsmfs__maps pins the link of its area,
   and a link is used again only when it has neither areas nor pins. Links are never unmapped: who pins one looks afterwards whether the area still has it.

   System calls are made by syscall(2) where libc's own function is a cancellation point, which would leave a link without its
   reader, or where the preloaded library replaces that function. */

enum { DSMFS__ATTACH = 1, DSMFS__TRACK, DSMFS__UNTRACK, DSMFS__PUBLISH, DSMFS__ACQUIRE, DSMFS__SYNC,
       DSMFS__WAIT, DSMFS__STATS, DSMFS__DETACH, DSMFS__CREATE, DSMFS__RESIZE, DSMFS__WATCH = 20, DSMFS__EXPECT, DSMFS__RESUME = 23 };
enum { DSMFS__MAGIC = 0x414d5344, DSMFS__VERSION = 1 }; /* of the protocol */
enum { DSMFS__PAYLOAD = 4096, DSMFS__GUARDED = 8 };
enum { DSMFS__MAPPING_LIMIT = 60000 }; /* ms for requests with signals blocked; the daemon's own limit is 30 s */
enum { DSMFS__PATIENCE = 5000 };       /* ms after which signals are unblocked during a request that is not answered */
enum { DSMFS__UFFD = 1, DSMFS__DEMAND = 4, DSMFS__DIRECT = 16, DSMFS__LASTS = 32 }; /* of ATTACH's d: TRACK needs a userfaultfd; the area is on demand;
                                                it is open in the mount with access=direct; the attachment outlives the daemon */

struct dsmfs__head { /* of every packet, as on the wire */
    uint32_t magic;
    uint16_t version, op;
    uint64_t tag, attachment, a, b, c, d;
    uint32_t length;
    int32_t error;
};

struct dsmfs__waiter { /* a request under way, on the stack of its thread */
    struct dsmfs__waiter *next;
    struct dsmfs__head head, reply; /* the reply is written with link.mu held */
    char *text;              /* where the payload of the reply goes, zero-terminated */
    size_t room;
    int fd;         /* received, or -1 */
    int lost;       /* the connection ended before there was an answer */
    uint32_t state; /* a futex: DSMFS__OPEN ... */
};
enum { DSMFS__OPEN, DSMFS__NUDGED, DSMFS__DONE };

struct dsmfs__link { /* the connection to one daemon, shared by all areas of it */
    struct dsmfs__link *next;
    pthread_mutex_t mu;
    struct dsmfs__waiter *waiters;
    uint64_t tags;
    pid_t reader; /* the thread that receives for all, or 0 */
    int fd, dead, areas, guard;
    int lasts, gone;        /* guarded by mu, as the next three: areas of it outlive the daemon; no other daemon follows */
    int followed;           /* another link has its areas */
    pid_t follower;         /* the thread that makes that link, or 0 */
    uint32_t turn;          /* a futex: changes when the follower looks whether there is still something to do */
    struct dsmfs__link *coming; /* that link, until it has the areas. dsmfs__maps guards it */
    int pause;              /* ms until the next try */
    struct stat id; /* identify the socket: the program may have closed it and opened something else */
    struct sockaddr_un at;
    int users; /* pins, by those that do not hold dsmfs__maps. Atomic; stays when the link is used again, since who looks at a link of the past counts for a moment */
};

struct dsmfs__line { /* in the header pages, which are read-only: what is in memory */
    uint32_t word, state;
    uint64_t newest, here, whole, arrived, asked, unused, number;
};
enum { DSMFS__ENDED = 1, DSMFS__REMOVED = 2, DSMFS__FOLLOWS = 4 }; /* of state */
enum { DSMFS__DIED = 0x40000000 };                                 /* of the life line's word */
#define DSMFS__CENTURY ((int64_t)100 * 365 * 86400 * 1000) /* ms */
enum { DSMFS__SOON = 50, DSMFS__EXPECTED = 10000, DSMFS__LOOK = 100 }; /* ms: see dsmfs_wait */

struct dsmfs__head_pages { /* of an area */
    struct dsmfs__head_pages *next; /* in the list of those that are another daemon's, and that somebody may still look at */
    const struct dsmfs__line *life, *line;
    uint64_t number;
    void *at[2]; /* the pages */
};

struct dsmfs {
    struct dsmfs *next;
    struct dsmfs__link *link; /* it and id change with dsmfs__maps held, when another daemon follows */
    struct dsmfs__head_pages *head; /* NULL until it is needed, or if the daemon has none */
    struct dsmfs__head_pages *old;
    int headless, readers; /* readers: threads that may look at header pages */
    uint64_t id, number, size; /* number: the area's inode number, which counts if the path leads elsewhere by now */
    int access, kind, refs; /* kind: ATTACH's d */
    int lost; /* why a child of fork has no attachment, as -errno */
    uint64_t memory; /* the inode number of the memfd */
    struct dsmfs__waiter resume; /* of RESUME, if it was asked */
    int asked, ended; /* ended: the daemon that followed does not have it, for the reason why */
    char why[128];
    dev_t device; /* of the mount, where the preloaded library found it */
    struct dsmfs__range *whole;
    char path[]; /* from the root of the filesystem */
};

struct dsmfs__range { /* one mapping */
    struct dsmfs__range *next;
    dsmfs *area;
    char *addr;
    size_t len; /* a multiple of the page size */
    uint64_t off;
    int prot, tracked, nofork, upgradable; /* tracked: by how many TRACKs */
};

static pthread_mutex_t dsmfs__maps = PTHREAD_MUTEX_INITIALIZER;
static struct dsmfs__link *dsmfs__links, *dsmfs__spare; /* spare: those that are not in use */
static dsmfs *dsmfs__areas;
static struct dsmfs__range *dsmfs__ranges;
static int dsmfs__guarded[DSMFS__GUARDED]; /* descriptors of links plus 1, for a library that protects them from being closed */
static pid_t dsmfs__pid;
static int dsmfs__forked; /* while a child of fork attaches its areas again, and cannot wait for another thread */
static uint64_t dsmfs__signals; /* of the thread that forks */
static __thread char dsmfs__text[512];

static int dsmfs__fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int dsmfs__fail(int err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(dsmfs__text, sizeof dsmfs__text, format, args);
    va_end(args);
    return -err;
}

DSMFS_API const char *dsmfs_error(void) { return dsmfs__text; }

static int64_t dsmfs__now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

static void dsmfs__restore(uint64_t mask) { syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask); }

/* Blocks all signals except those that the thread itself causes and those that libc uses. */
static uint64_t dsmfs__block(void)
{
    static const int open[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, 32, 33};
    uint64_t all = ~(uint64_t)0, old;
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        all &= ~((uint64_t)1 << (open[i] - 1));
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all);
    return old;
}

static uint64_t dsmfs__lock(void)
{
    uint64_t old = dsmfs__block();
    pthread_mutex_lock(&dsmfs__maps);
    return old;
}

static void dsmfs__unlock(uint64_t old)
{
    pthread_mutex_unlock(&dsmfs__maps);
    dsmfs__restore(old);
}

static int dsmfs__close(int fd) { return fd < 0 ? 0 : (int)syscall(SYS_close, fd); }

static void *dsmfs__mmap(void *at, size_t n, int prot, int flags, int fd, uint64_t off)
{
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

/* Whether the link's descriptor is still its own. */
static int dsmfs__own(struct dsmfs__link *l)
{
    struct stat s;
    return l->fd >= 0 && fstat(l->fd, &s) == 0 && s.st_dev == l->id.st_dev && s.st_ino == l->id.st_ino;
}

static void dsmfs__done(struct dsmfs__waiter *w, uint32_t state)
{
    if (__atomic_load_n(&w->state, __ATOMIC_RELAXED) != DSMFS__DONE)
        __atomic_store_n(&w->state, state, __ATOMIC_RELEASE);
    syscall(SYS_futex, &w->state, 129 /* FUTEX_WAKE_PRIVATE */, 1, NULL, NULL, 0);
}

/* Ends the link and tells all threads that wait. link.mu is held. */
static void dsmfs__hangup(struct dsmfs__link *l)
{
    struct dsmfs__waiter *w, *next;
    l->dead = 1;
    for (w = l->waiters; w; w = next) {
        next = w->next; /* a waiter that is done may be gone */
        w->reply.error = ENOTCONN;
        w->lost = 1;
        snprintf(w->text, w->room, "the daemon of %s has ended the connection, or is gone", l->at.sun_path);
        dsmfs__done(w, DSMFS__DONE);
    }
    l->waiters = NULL;
}

/* Receives replies and gives them to the threads that wait for them. link.mu is held. */
static void dsmfs__receive(struct dsmfs__link *l)
{
    for (;;) {
        struct dsmfs__head h;
        struct dsmfs__waiter **at, *w;
        char text[DSMFS__PAYLOAD];
        union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
        struct iovec part[2] = {{&h, sizeof h}, {text, sizeof text}};
        struct msghdr m = {0};
        struct cmsghdr *c;
        ssize_t n;
        int fd = -1;
        m.msg_iov = part;
        m.msg_iovlen = 2;
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        n = syscall(SYS_recvmsg, l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n > 0)
            for (c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof fd))
                    memcpy(&fd, CMSG_DATA(c), sizeof fd);
        if (n < (ssize_t)sizeof h || h.magic != DSMFS__MAGIC || h.version != DSMFS__VERSION || h.length != n - sizeof h) {
            dsmfs__close(fd);
            l->gone |= n > 0; /* what sends that is no daemon */
            dsmfs__hangup(l);
            return;
        }
        for (at = &l->waiters; (w = *at) && w->head.tag != h.tag;)
            at = &w->next;
        if (!w) { /* it does not wait any more */
            dsmfs__close(fd);
            if (h.op == DSMFS__RESUME && !h.error) { /* and the area was detached meanwhile */
                struct dsmfs__head end = {DSMFS__MAGIC, DSMFS__VERSION, DSMFS__DETACH, 0, h.attachment, 0, 0, 0, 0, 0, 0};
                syscall(SYS_sendto, l->fd, &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
            }
            continue;
        }
        *at = w->next;
        n = h.length < w->room ? h.length : w->room - 1;
        memcpy(w->text, text, n);
        w->text[n] = 0;
        h.length = n;
        w->reply = h;
        w->fd = fd;
        dsmfs__done(w, DSMFS__DONE);
    }
}

static int dsmfs__poll(int fd, int events, int64_t ms, const uint64_t *mask)
{
    struct pollfd p = {fd, (short)events, 0};
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    return (int)syscall(SYS_ppoll, &p, 1, &t, mask, sizeof *mask);
}

static int dsmfs__post(struct dsmfs__link *l, struct dsmfs__waiter *w, const char *payload, int fd, int64_t limit)
{
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct iovec part[2] = {{&w->head, sizeof w->head}, {(void *)(uintptr_t)payload, w->head.length}};
    struct msghdr m = {0};
    m.msg_iov = part;
    m.msg_iovlen = 2;
    if (fd >= 0) {
        struct cmsghdr *c;
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    for (;;) {
        if (syscall(SYS_sendmsg, l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno != EAGAIN)
            return -(errno == EPIPE || errno == ECONNRESET ? ENOTCONN : errno);
        if (dsmfs__now() > limit)
            return -ETIMEDOUT;
        dsmfs__poll(l->fd, POLLOUT, 100, NULL);
    }
}

/* Sends a request and waits for its reply: 0, or -errno with a text. limit is in ms, 0 for none; with mapping set dsmfs__maps is
   held. One of the waiting threads receives for all; when it has its own reply, it wakes the others. A signal handler
   that makes a request while its thread is in one receives in that request's place. */
static int dsmfs__call(struct dsmfs__link *l, struct dsmfs__waiter *w, const char *payload, int fd, int64_t limit, int mapping)
{
    char small[256];
    uint64_t old = dsmfs__block();
    int64_t start = dsmfs__now(), patience = w->head.op == DSMFS__WAIT ? 0 : DSMFS__PATIENCE, end;
    pid_t self = (pid_t)syscall(SYS_gettid);
    struct dsmfs__waiter **at, *o;
    int err = 0, closed = 0, saved = errno;
    if (mapping)
        limit = DSMFS__MAPPING_LIMIT;
    end = start + (limit ? limit : INT64_MAX / 4);
    w->head.magic = DSMFS__MAGIC;
    w->head.version = DSMFS__VERSION;
    w->head.length = payload ? (uint32_t)strlen(payload) : 0;
    w->fd = -1;
    if (!w->text) {
        w->text = small;
        w->room = sizeof small;
    }
    pthread_mutex_lock(&l->mu);
    w->head.tag = ++l->tags;
    if (getpid() == dsmfs__pid && !l->dead && !dsmfs__own(l))
        l->dead = l->gone = 1;
    if (l->dead || getpid() != dsmfs__pid) {
        err = -ENOTCONN;
        w->lost = 1;
    } else {
        w->next = l->waiters;
        l->waiters = w;
    }
    pthread_mutex_unlock(&l->mu);
    if (!err && (err = dsmfs__post(l, w, payload, fd, end)) < 0) {
        closed = err == -ENOTCONN;
        dsmfs__fail(-err, "%s does not take requests: %s", l->at.sun_path, strerror(-err));
    }
    pthread_mutex_lock(&l->mu);
    w->lost |= closed;
    if (closed)
        dsmfs__receive(l); /* the last replies, then the end: the next attach connects anew */
    if (err == -ENOTCONN)
        dsmfs__fail(ENOTCONN, "the connection to %s has ended: attach again", l->at.sun_path);
    while (!err && __atomic_load_n(&w->state, __ATOMIC_ACQUIRE) != DSMFS__DONE) {
        int64_t now = dsmfs__now(), slice = now - start < patience ? start + patience - now : end - now;
        int handlers = !mapping && now - start >= patience;
        pid_t before = l->reader;
        if (now >= end) {
            err = dsmfs__fail(ETIMEDOUT, "no answer from %s within %lld ms", l->at.sun_path, (long long)limit);
            break;
        }
        slice = slice > end - now ? end - now : slice;
        w->state = DSMFS__OPEN;
        if (before == 0 || before == self) {
            l->reader = self;
            pthread_mutex_unlock(&l->mu);
            dsmfs__poll(l->fd, POLLIN, slice, handlers ? &old : NULL);
            pthread_mutex_lock(&l->mu);
            dsmfs__receive(l);
            l->reader = before;
        } else {
            struct timespec t = {slice / 1000, slice % 1000 * 1000000};
            pthread_mutex_unlock(&l->mu);
            if (handlers)
                dsmfs__restore(old);
            syscall(SYS_futex, &w->state, 128 /* FUTEX_WAIT_PRIVATE */, DSMFS__OPEN, &t, NULL, 0);
            if (handlers)
                dsmfs__block();
            pthread_mutex_lock(&l->mu);
        }
    }
    if (err)
        for (at = &l->waiters; *at; at = &(*at)->next)
            if (*at == w) {
                *at = w->next;
                break;
            }
    if (l->reader == 0)
        for (o = l->waiters; o; o = o->next)
            dsmfs__done(o, DSMFS__NUDGED);
    pthread_mutex_unlock(&l->mu);
    if (!err && (w->reply.error || w->reply.op != w->head.op))
        err = dsmfs__fail(w->reply.error ? w->reply.error : EPROTO, "%s", w->text[0] ? w->text : strerror(w->reply.error));
    errno = saved;
    dsmfs__restore(old);
    return err;
}

/* Tells the daemon that something ends. That fails only if there is no daemon to care, and then dsmfs_error keeps what it says of the reason. */
static void dsmfs__tell(struct dsmfs__link *l, struct dsmfs__waiter *w)
{
    char text[sizeof dsmfs__text];
    memcpy(text, dsmfs__text, sizeof text);
    if (dsmfs__call(l, w, NULL, -1, 0, 1) < 0)
        memcpy(dsmfs__text, text, sizeof text);
}

/* Where a file of a mount is. */
struct dsmfs__place {
    char path[2 * DSMFS__PAYLOAD]; /* from the root of the filesystem */
    char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char line[DSMFS__PAYLOAD], field[3][DSMFS__PAYLOAD]; /* scratch */
};

static int dsmfs__read(const char *path, char *buf, size_t n)
{
    int fd, got = -EBADF, tries;
    for (tries = 0; got == -EBADF && tries < 8; tries++) { /* of a file of /.dsm: the daemon that had opened it has ended, and another follows */
        fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        got = (int)syscall(SYS_read, fd, buf, n - 1);
        got = got < 0 ? -errno : got;
        dsmfs__close(fd);
    }
    buf[got < 0 ? 0 : got] = 0;
    return got;
}

/* Undoes the octal escapes of mountinfo, in place. */
static void dsmfs__unescape(char *s)
{
    char *to = s;
    for (; *s; *to++ = *s++)
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            s[3] = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        }
    *to = 0;
}

/* Finds in mountinfo the mount id, or with id < 0 the mount of the same device (field 0) that shows the root of its filesystem. Leaves
   device, root and point in field[0] to field[2]. Returns 0, -ENOENT, or -ENODEV for a mount that is not of dsmfs. */
static int dsmfs__mount(struct dsmfs__place *p, int id)
{
    char chunk[1024], device[32];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC), result = -ENOENT;
    size_t have = 0;
    long n = 0, i = 0;
    if (fd < 0)
        return -errno;
    memcpy(device, p->field[0], sizeof device);
    device[sizeof device - 1] = 0;
    while (result == -ENOENT && (i < n || (n = syscall(SYS_read, fd, chunk, sizeof chunk)) > 0)) {
        char *type, c;
        int at;
        if (i >= n)
            i = 0;
        c = chunk[i++];
        if (c != '\n') {
            if (have < sizeof p->line - 1)
                p->line[have++] = c;
            continue;
        }
        p->line[have] = 0;
        have = 0;
        if (sscanf(p->line, "%d %*d %31s %4095s %4095s", &at, p->field[0], p->field[1], p->field[2]) != 4 || !(type = strstr(p->line, " - ")))
            continue;
        if (id < 0 ? strcmp(device, p->field[0]) || strcmp(p->field[1], "/") : at != id)
            continue;
        dsmfs__unescape(p->field[1]);
        dsmfs__unescape(p->field[2]);
        result = strncmp(type, " - fuse.dsmfs ", 14) ? -ENODEV : 0;
    }
    dsmfs__close(fd);
    return result;
}

/* Finds out where an open file lies. -ENODEV: in no dsmfs mount. */
static int dsmfs__find(int fd, const char *name, struct dsmfs__place *p)
{
    struct stat s;
    char proc[64], *id;
    const char *env = getenv("DSMFS_ATTACH"), *root;
    size_t point;
    int n;
    snprintf(proc, sizeof proc, "/proc/self/fdinfo/%d", fd);
    if ((n = dsmfs__read(proc, p->line, sizeof p->line)) < 0 || !(id = strstr(p->line, "mnt_id:")))
        return dsmfs__fail(n < 0 ? -n : ENODEV, "%s tells no mount", proc);
    if ((n = dsmfs__mount(p, atoi(id + 7))) < 0)
        return dsmfs__fail(-n, "it is not in a dsmfs mount");
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    if ((n = (int)readlink(proc, p->line, sizeof p->line - 1)) < 0)
        return dsmfs__fail(errno, "%s: %s", proc, strerror(errno));
    p->line[n] = 0;
    if (n > 10 && !strcmp(p->line + n - 10, " (deleted)") && fstatat(AT_FDCWD, p->line, &s, AT_SYMLINK_NOFOLLOW) < 0)
        p->line[n - 10] = 0; /* the daemon may know it by its number */
    root = strcmp(p->field[1], "/") ? p->field[1] : "";
    point = strcmp(p->field[2], "/") ? strlen(p->field[2]) : 0;
    if (strncmp(p->line, p->field[2], point))
        return dsmfs__fail(ENOENT, "%s is not below %s", p->line, p->field[2]);
    n = snprintf(p->path, sizeof p->path, "%s%s%s%s", root, p->line + point, name ? "/" : "", name ? name : "");
    if (n < 2 || n >= DSMFS__PAYLOAD)
        return dsmfs__fail(n < 2 ? EISDIR : ENAMETOOLONG, "%s: no path of an area", p->path);
    if (env && *env) {
        n = snprintf(p->socket, sizeof p->socket, "%s", env);
        return n < (int)sizeof p->socket ? 0 : dsmfs__fail(ENAMETOOLONG, "$DSMFS_ATTACH is too long for a socket");
    }
    if (*root && (n = dsmfs__mount(p, -1)) < 0)
        return dsmfs__fail(-n, "it is in a bind mount, and the whole filesystem is not mounted");
    snprintf(p->line, sizeof p->line, "%.4000s/.dsm/attach", p->field[2]);
    if ((n = dsmfs__read(p->line, p->socket, sizeof p->socket)) <= 0)
        return dsmfs__fail(n ? -n : ENODEV, "%.400s: %s", p->line, n ? strerror(-n) : "empty");
    p->socket[strcspn(p->socket, "\n")] = 0;
    return 0;
}

/* The same for a path; with new set, for a file that will be made. */
static int dsmfs__look(const char *socket, const char *path, int new, struct dsmfs__place *p)
{
    const char *env = getenv("DSMFS_ATTACH"), *name = NULL, *slash = strrchr(path, '/');
    int fd, n;
    if (!socket) {
        snprintf(p->path, sizeof p->path, "%s", path);
        if (new) {
            snprintf(p->path, sizeof p->path, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
            name = slash ? slash + 1 : path;
        }
        fd = (int)syscall(SYS_openat, AT_FDCWD, p->path, O_PATH | O_CLOEXEC);
        n = fd < 0 ? dsmfs__fail(errno, "%s: %s", path, strerror(errno)) : dsmfs__find(fd, name, p);
        dsmfs__close(fd);
        if (n == 0 || !env || !*env)
            return n;
        socket = env;
    }
    n = snprintf(p->socket, sizeof p->socket, "%s", socket);
    if (n >= (int)sizeof p->socket || strlen(path) >= DSMFS__PAYLOAD || *path != '/')
        return dsmfs__fail(EINVAL, "%s: want a path from the root of the filesystem, and a shorter socket than %d bytes", path, (int)sizeof p->socket);
    snprintf(p->path, sizeof p->path, "%s", path);
    return 0;
}

static void dsmfs__prepare(void) { dsmfs__signals = dsmfs__lock(); }
static void dsmfs__parent(void) { dsmfs__unlock(dsmfs__signals); }
static void dsmfs__child(void);
static void dsmfs__hook(void) { pthread_atfork(dsmfs__prepare, dsmfs__parent, dsmfs__child); }

static void dsmfs__cut(struct dsmfs__link *l)
{
    if (dsmfs__own(l))
        dsmfs__close(l->fd);
    l->fd = -1;
    l->dead = 1;
    if (l->guard >= 0)
        __atomic_store_n(&dsmfs__guarded[l->guard], 0, __ATOMIC_RELEASE);
    l->guard = -1;
}

/* What a link is good for: requests, or to wait for the link that follows it. */
enum { DSMFS__LIVE = 1, DSMFS__AWAITS };
static int dsmfs__state(struct dsmfs__link *l)
{
    int live, awaits;
    pthread_mutex_lock(&l->mu);
    awaits = l->lasts && !l->gone && !l->followed && (l->dead || dsmfs__own(l));
    live = !l->dead && dsmfs__own(l);
    pthread_mutex_unlock(&l->mu);
    return live && dsmfs__poll(l->fd, 0, 0, NULL) <= 0 ? DSMFS__LIVE : awaits ? DSMFS__AWAITS : 0;
}

/* Makes a connection; returns NULL with errno if that is not possible. With SOCK_NONBLOCK among the flags it is EAGAIN where it would wait. It may run in a
   signal handler, so it does not allocate by DSMFS_MALLOC. dsmfs__maps is held. */
static struct dsmfs__link *dsmfs__dial(const char *socket_path, int flags)
{
    struct dsmfs__link *l = dsmfs__spare;
    int fd, high, i;
    if (!l && (l = dsmfs__mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED)
        return NULL;
    dsmfs__spare = l->next;
    memset(l, 0, offsetof(struct dsmfs__link, users));
    pthread_mutex_init(&l->mu, NULL);
    l->at.sun_family = AF_UNIX;
    snprintf(l->at.sun_path, sizeof l->at.sun_path, "%s", socket_path);
    l->guard = -1;
    fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
    if (fd < 0 || syscall(SYS_connect, fd, &l->at, sizeof l->at) < 0 || fstat(fd, &l->id) < 0) {
        int err = errno;
        dsmfs__close(fd);
        l->next = dsmfs__spare;
        dsmfs__spare = l;
        errno = err;
        return NULL;
    }
    high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900); /* out of the way of programs that choose numbers */
    if (high >= 0) {
        dsmfs__close(fd);
        fd = high;
    }
    l->fd = fd;
    for (i = 0; i < DSMFS__GUARDED && l->guard < 0; i++)
        if (!dsmfs__guarded[i]) {
            l->guard = i;
            __atomic_store_n(&dsmfs__guarded[i], fd + 1, __ATOMIC_RELEASE);
        }
    return l;
}

/* Returns the link to the daemon, and makes it if there is none, or its other end has gone. -ENOTCONN: another daemon may follow, see dsmfs__ready.
   dsmfs__maps is held. */
static int dsmfs__connect(const char *socket_path, struct dsmfs__link **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct dsmfs__link *l;
    int state, awaits = 0;
    for (l = dsmfs__links; l; l = l->next)
        if (!strcmp(l->at.sun_path, socket_path) && dsmfs__pid == getpid() && (state = dsmfs__state(l))) {
            awaits = state == DSMFS__AWAITS;
            if (awaits)
                continue;
            *out = l;
            return 0;
        }
    if (awaits && !dsmfs__forked)
        return dsmfs__fail(ENOTCONN, "the daemon of %s has ended", socket_path);
    pthread_once(&once, dsmfs__hook);
    if (dsmfs__pid != getpid()) /* a child made by clone(2): the link that it inherited is its parent's */
        for (l = dsmfs__links; l; l = l->next)
            dsmfs__cut(l);
    if (!(l = dsmfs__dial(socket_path, 0)))
        return dsmfs__fail(errno, "connect to %s: %s", socket_path, strerror(errno));
    dsmfs__pid = getpid();
    l->next = dsmfs__links;
    *out = dsmfs__links = l;
    return 0;
}

/* Gives up a link that is in no list. dsmfs__maps is held. */
static void dsmfs__drop_link(struct dsmfs__link *l)
{
    dsmfs__cut(l);
    l->next = dsmfs__spare;
    dsmfs__spare = l;
}

/* Ends links that are not used any more. dsmfs__maps is held. */
static void dsmfs__sweep(void)
{
    struct dsmfs__link **at = &dsmfs__links, *l;
    while ((l = *at)) {
        if (l->areas || __atomic_load_n(&l->users, __ATOMIC_SEQ_CST)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        if (l->coming)
            dsmfs__drop_link(l->coming);
        dsmfs__drop_link(l);
    }
}

/* A userfaultfd, or -1. User mode is enough for write protection that the kernel resolves itself. For missing pages it handles
   only touches by the program itself, not by system calls. */
static int dsmfs__uffd(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), dev;
    if (fd < 0 && (dev = (int)syscall(SYS_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC)) >= 0) {
        fd = ioctl(dev, 0xAA00 /* USERFAULTFD_IOC_NEW */, O_CLOEXEC | O_NONBLOCK);
        dsmfs__close(dev);
    }
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    return fd;
}

/* Whether a mapping must be tracked: mappings that are stored to, and those of areas on demand. Nobody may touch the latter before they are
   tracked: that would make pages of zeroes, for all programs of the node. */
static int dsmfs__wants(const dsmfs *a, int prot) { return (prot & PROT_WRITE) || (a->kind & DSMFS__DEMAND); }

/* The protection with which a mapping is made so that it can be tracked; it gets its own protection afterwards. */
static int dsmfs__first(const dsmfs *a, int prot)
{
    return (a->kind & DSMFS__DEMAND) && a->access == DSMFS_WRITE ? prot | PROT_READ | PROT_WRITE : prot;
}

static int dsmfs__protect(const struct dsmfs__range *r)
{
    if (dsmfs__first(r->area, r->prot) == r->prot || syscall(SYS_mprotect, r->addr, r->len, r->prot) == 0)
        return 0;
    return dsmfs__fail(errno, "mprotect: %s", strerror(errno));
}

static int dsmfs__lasts(const dsmfs *a) { return (a->kind & (DSMFS__LASTS | DSMFS__DEMAND)) == DSMFS__LASTS; }

/* Lets the daemon find the stores to a range, including those made before. dsmfs__maps is held, as in the functions below. If the daemon has ended, and
   another may follow, that one is told when it has the area. */
static int dsmfs__track(struct dsmfs__range *r)
{
    struct dsmfs__waiter w = {0};
    int needed = r->area->kind & (DSMFS__UFFD | DSMFS__DEMAND), fd = needed ? dsmfs__uffd() : -1, err;
    if (needed && fd < 0)
        return dsmfs__fail(errno, "%s: this process may have no userfaultfd: %s", r->area->path, strerror(errno));
    w.head.op = DSMFS__TRACK;
    w.head.attachment = r->area->id;
    w.head.a = (uintptr_t)r->addr;
    w.head.b = r->len;
    w.head.c = r->off;
    err = dsmfs__call(r->area->link, &w, NULL, fd, 0, 1);
    dsmfs__close(fd);
    r->tracked = !err;
    if (w.lost && dsmfs__lasts(r->area)) {
        pthread_mutex_lock(&r->area->link->mu);
        err = r->area->link->gone ? err : 0;
        pthread_mutex_unlock(&r->area->link->mu);
    }
    return err;
}

/* Ends the tracking of a range before it is unmapped. Its stores are found first. A range on demand stays tracked until it is
   unmapped; the kernel tells the daemon about that. */
static void dsmfs__untrack(struct dsmfs__range *r)
{
    struct dsmfs__waiter w = {0};
    if (r->area->kind & DSMFS__DEMAND)
        return;
    w.head.op = DSMFS__UNTRACK;
    w.head.attachment = r->area->id;
    w.head.a = (uintptr_t)r->addr;
    w.head.b = r->len;
    if (r->tracked && !r->area->lost && !r->area->ended)
        dsmfs__tell(r->area->link, &w);
    r->tracked = 0;
}

static void dsmfs__free_heads(struct dsmfs__head_pages *h)
{
    struct dsmfs__head_pages *next;
    int i;
    for (; h; h = next) {
        next = h->next;
        for (i = 0; i < 2; i++)
            syscall(SYS_munmap, h->at[i], 4096);
        DSMFS_FREE(h);
    }
}

/* Gives up the header page of an attachment that ends. Nobody may use it. */
static void dsmfs__behead(dsmfs *a)
{
    dsmfs__free_heads(a->head);
    dsmfs__free_heads(a->old);
    a->head = a->old = NULL;
}

/* Takes the header page of a daemon that has ended away. Threads may still look at it: the last of them frees it. */
static void dsmfs__retire(dsmfs *a)
{
    struct dsmfs__head_pages *h = a->head;
    __atomic_store_n(&a->headless, 0, __ATOMIC_RELAXED);
    if (!h)
        return;
    h->next = a->old;
    __atomic_store_n(&a->old, h, __ATOMIC_SEQ_CST);
    __atomic_store_n(&a->head, NULL, __ATOMIC_SEQ_CST);
}

/* A thread looks at header pages from enter to leave. */
static void dsmfs__enter(dsmfs *a) { __atomic_add_fetch(&a->readers, 1, __ATOMIC_SEQ_CST); }

static void dsmfs__leave(dsmfs *a)
{
    uint64_t old;
    if (__atomic_sub_fetch(&a->readers, 1, __ATOMIC_SEQ_CST) || !__atomic_load_n(&a->old, __ATOMIC_SEQ_CST))
        return;
    old = dsmfs__lock();
    if (!__atomic_load_n(&a->readers, __ATOMIC_SEQ_CST)) { /* who comes from now on finds the new one */
        dsmfs__free_heads(a->old);
        __atomic_store_n(&a->old, NULL, __ATOMIC_SEQ_CST);
    }
    dsmfs__unlock(old);
}

/* The header page of the area, or NULL if the daemon has none. */
static struct dsmfs__head_pages *dsmfs__watch(dsmfs *a)
{
    struct dsmfs__head_pages *h = __atomic_load_n(&a->head, __ATOMIC_SEQ_CST);
    struct dsmfs__waiter w = {0};
    uint64_t old;
    int err;
    if (a->lost || __atomic_load_n(&a->ended, __ATOMIC_ACQUIRE)) /* the page is the parent's: a request says what is wrong */
        return NULL;
    if (h || __atomic_load_n(&a->headless, __ATOMIC_RELAXED))
        return h;
    old = dsmfs__lock();
    w.head.op = DSMFS__WATCH;
    w.head.attachment = a->id;
    if (!(h = a->head) && (h = DSMFS_MALLOC(sizeof *h))) {
        h->next = NULL;
        err = dsmfs__call(a->link, &w, NULL, -1, 0, 1);
        __atomic_store_n(&a->headless, err == -EINVAL, __ATOMIC_RELAXED);
        h->at[0] = h->at[1] = MAP_FAILED;
        if (!err && w.fd >= 0) {
            h->at[0] = dsmfs__mmap(NULL, 4096, PROT_READ, MAP_SHARED, w.fd, 0);
            h->at[1] = dsmfs__mmap(NULL, 4096, PROT_READ, MAP_SHARED, w.fd, w.reply.a & ~(uint64_t)4095);
        }
        if (h->at[0] != MAP_FAILED && h->at[1] != MAP_FAILED) {
            h->life = (const struct dsmfs__line *)h->at[0];
            h->line = (const struct dsmfs__line *)(const void *)((const char *)h->at[1] + w.reply.a % 4096);
            h->number = w.reply.b;
            __atomic_store_n(&a->head, h, __ATOMIC_SEQ_CST);
        } else {
            if (h->at[0] != MAP_FAILED)
                syscall(SYS_munmap, h->at[0], 4096);
            DSMFS_FREE(h);
            h = NULL;
        }
        dsmfs__close(w.fd);
    }
    dsmfs__unlock(old);
    return h;
}

/* Returns the link of the area, and the area's number there. It is not used for something else before dsmfs__unpin. */
static struct dsmfs__link *dsmfs__pin(dsmfs *a, uint64_t *id)
{
    for (;;) {
        struct dsmfs__link *l = __atomic_load_n(&a->link, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&l->users, 1, __ATOMIC_SEQ_CST);
        *id = __atomic_load_n(&a->id, __ATOMIC_SEQ_CST); /* if that is the next daemon's already, this link is dead */
        if (__atomic_load_n(&a->link, __ATOMIC_SEQ_CST) == l)
            return l;
        __atomic_sub_fetch(&l->users, 1, __ATOMIC_SEQ_CST);
    }
}

static void dsmfs__unpin(struct dsmfs__link *l)
{
    if (__atomic_sub_fetch(&l->users, 1, __ATOMIC_SEQ_CST) == 0 && __atomic_load_n(&l->followed, __ATOMIC_SEQ_CST)) {
        uint64_t old = dsmfs__lock();
        dsmfs__sweep();
        dsmfs__unlock(old);
    }
}

static int dsmfs__hung_up(dsmfs *a)
{
    uint64_t id;
    struct dsmfs__link *l = dsmfs__pin(a, &id);
    int up = dsmfs__poll(l->fd, 0, 0, NULL) <= 0;
    dsmfs__unpin(l);
    return !up;
}

/* Reads one of the line's values. Fails if nobody tells there any more. */
static int64_t dsmfs__told(dsmfs *a, const struct dsmfs__head_pages *h, const uint64_t *value)
{
    uint64_t v = __atomic_load_n(value, __ATOMIC_ACQUIRE);
    uint32_t life = __atomic_load_n(&h->life->word, __ATOMIC_ACQUIRE), state = __atomic_load_n(&h->line->state, __ATOMIC_ACQUIRE);
    if (life & DSMFS__DIED || state & DSMFS__ENDED || __atomic_load_n(&h->line->number, __ATOMIC_ACQUIRE) != h->number ||
        h != __atomic_load_n(&a->head, __ATOMIC_SEQ_CST) || (!life && dsmfs__hung_up(a))) /* without robust futexes the socket tells */
        return dsmfs__fail(ENOTCONN, "the daemon of %s has ended", a->path);
    if (state & DSMFS__REMOVED)
        return dsmfs__fail(ENOENT, "%s was removed", a->path);
    return (int64_t)v;
}

/* Sleeps until the line or the life line changes, a signal comes, or ms have passed. word and life were read before what is waited for. */
static void dsmfs__sleep(const struct dsmfs__head_pages *h, uint32_t word, uint32_t life, int64_t ms)
{
    struct { uint64_t value, address; uint32_t flags, unused; } on[2] = {
        {word, (uintptr_t)&h->line->word, 2 /* FUTEX_32 */, 0}, {life, (uintptr_t)&h->life->word, 2, 0}};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    if ((t.tv_nsec += ms % 1000 * 1000000) >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    if (syscall(449 /* futex_waitv */, on, 2, 0, &t, CLOCK_MONOTONIC) < 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
        dsmfs__poll(-1, 0, 1, NULL); /* before Linux 5.16, or a sandbox forbids it */
    if (__atomic_load_n(&h->life->word, __ATOMIC_ACQUIRE) & DSMFS__DIED) /* the kernel has woken one thread */
        syscall(SYS_futex, &h->life->word, 1 /* FUTEX_WAKE */, INT32_MAX, NULL, NULL, 0);
}

/* Sends DETACH. */
static void dsmfs__part(dsmfs *a)
{
    struct dsmfs__waiter w = {0};
    w.head.op = DSMFS__DETACH;
    w.head.attachment = a->id;
    dsmfs__tell(a->link, &w);
}

static void dsmfs__end(dsmfs *a)
{
    dsmfs__behead(a);
    dsmfs__part(a);
}

/* Sends ATTACH for the path and handles the reply; returns the memfd or -errno. If a->number is set it must be that area. */
static int dsmfs__ask(dsmfs *a)
{
    struct dsmfs__waiter w = {0};
    uint64_t number = a->number;
    struct stat memory;
    int err;
    w.head.op = DSMFS__ATTACH;
    w.head.a = (uint64_t)a->access;
    w.head.b = number;
    if ((err = dsmfs__call(a->link, &w, a->path, -1, 0, 1)) < 0) {
        dsmfs__close(w.fd);
        return err;
    }
    if (w.fd < 0)
        return dsmfs__fail(EPROTO, "%s: the daemon sent no memory", a->path);
    if (fstat(w.fd, &memory) < 0) {
        err = dsmfs__fail(errno, "%s: its memory: %s", a->path, strerror(errno));
        dsmfs__close(w.fd);
        return err;
    }
    __atomic_store_n(&a->id, w.reply.attachment, __ATOMIC_SEQ_CST);
    a->memory = memory.st_ino;
    a->size = w.reply.a;
    a->number = w.reply.b;
    a->kind = (int)w.reply.d;
    pthread_mutex_lock(&a->link->mu);
    a->link->lasts |= dsmfs__lasts(a);
    pthread_mutex_unlock(&a->link->mu);
    if (!number || a->number == number)
        return w.fd;
    dsmfs__close(w.fd);
    w.fd = -1;
    dsmfs__end(a);
    a->number = number;
    return dsmfs__fail(ESTALE, "the path %s is another area now", a->path);
}

/* Forgets that RESUME was asked for the area. */
static void dsmfs__unask(dsmfs *a, struct dsmfs__link *n)
{
    struct dsmfs__waiter **at;
    if (!a->asked)
        return;
    a->asked = 0;
    pthread_mutex_lock(&n->mu);
    for (at = &n->waiters; *at; at = &(*at)->next)
        if (*at == &a->resume) {
            *at = a->resume.next;
            break;
        }
    pthread_mutex_unlock(&n->mu);
}

/* Drops a reference to the area, and with the last one ends the attachment. */
static void dsmfs__release(dsmfs *a)
{
    dsmfs **at = &dsmfs__areas;
    if (--a->refs > 0)
        return;
    if (!a->lost && !a->ended)
        dsmfs__end(a);
    if (a->link->coming)
        dsmfs__unask(a, a->link->coming);
    dsmfs__behead(a);
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    a->link->areas--;
    DSMFS_FREE(a);
    dsmfs__sweep();
}

/* Attaches without mapping; the caller closes *memfd. number is 0, or the number that the area must have. */
static int dsmfs__open(const char *socket, const char *path, uint64_t number, int access, dsmfs **out, int *memfd)
{
    struct dsmfs__link *l;
    size_t n = strlen(path) + 1;
    dsmfs *a;
    int err = dsmfs__connect(socket, &l);
    if (err < 0)
        return err;
    if (!(a = DSMFS_MALLOC(sizeof *a + n))) {
        dsmfs__sweep();
        return dsmfs__fail(ENOMEM, "out of memory");
    }
    memset(a, 0, sizeof *a);
    memcpy(a->path, path, n);
    a->access = access;
    a->number = number;
    a->refs = 1;
    a->link = l;
    if ((*memfd = dsmfs__ask(a)) < 0) {
        err = *memfd;
        DSMFS_FREE(a);
        dsmfs__sweep();
        return err;
    }
    l->areas++;
    a->next = dsmfs__areas;
    *out = dsmfs__areas = a;
    return 0;
}

/* The length of the pages that n bytes take. */
static size_t dsmfs__pages(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

/* Adds a range to the list; the range takes a reference to the area. */
static struct dsmfs__range *dsmfs__range(dsmfs *a, char *addr, size_t len, uint64_t off, int prot)
{
    struct dsmfs__range *r = DSMFS_MALLOC(sizeof *r);
    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->area = a;
    r->addr = addr;
    r->len = dsmfs__pages(len);
    r->off = off;
    r->prot = prot;
    r->next = dsmfs__ranges;
    a->refs++;
    __atomic_store_n(&dsmfs__ranges, r, __ATOMIC_RELEASE);
    return r;
}

static void dsmfs__drop(struct dsmfs__range *r)
{
    struct dsmfs__range **at = &dsmfs__ranges;
    dsmfs *a = r->area;
    while (*at != r)
        at = &(*at)->next;
    __atomic_store_n(at, r->next, __ATOMIC_RELEASE);
    DSMFS_FREE(r);
    dsmfs__release(a);
}

/* Unmaps a range and takes it off the list. */
static void dsmfs__discard(struct dsmfs__range *r)
{
    dsmfs__untrack(r);
    syscall(SYS_munmap, r->addr, r->len);
    dsmfs__drop(r);
}

/* Sets up a mapping that was just made for a range: not inherited by children of fork, and tracked if necessary. */
static int dsmfs__settle(struct dsmfs__range *r)
{
    int err = 0;
    if (syscall(SYS_madvise, r->addr, r->len, MADV_DONTFORK) < 0)
        return dsmfs__fail(errno, "MADV_DONTFORK: %s", strerror(errno));
    if (dsmfs__wants(r->area, r->prot) && (err = dsmfs__track(r)) == 0)
        err = dsmfs__protect(r);
    return err;
}

/* Maps a part of the area, tracked if necessary. After an error with addr and MAP_FIXED, something may be mapped there. */
static int dsmfs__map(dsmfs *a, int memfd, void *addr, size_t len, int prot, int flags, uint64_t off, struct dsmfs__range **out)
{
    struct dsmfs__range *r = NULL;
    int early = a->kind & DSMFS__DEMAND ? MAP_POPULATE | MAP_LOCKED : 0, err = 0; /* these would touch it */
    char *p = dsmfs__mmap(addr, len, dsmfs__first(a, prot), flags & ~early, memfd, off);
    if (p == MAP_FAILED)
        return dsmfs__fail(errno, "map %zu bytes of %s: %s", len, a->path, strerror(errno));
    if (!(r = dsmfs__range(a, p, len, off, prot)))
        err = dsmfs__fail(ENOMEM, "out of memory");
    else
        err = dsmfs__settle(r);
    if (err < 0) {
        syscall(SYS_munmap, p, len);
        if (r)
            dsmfs__drop(r);
        return err;
    }
    *out = r;
    return 0;
}

/* Maps the whole area, if it is not empty. */
static int dsmfs__map_whole(dsmfs *a, int memfd)
{
    int prot = a->access == DSMFS_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    return a->size ? dsmfs__map(a, memfd, NULL, a->size, prot, MAP_SHARED, 0, &a->whole) : 0;
}

/* Attaches an area again in the child of a fork, where its parent had it. */
static int dsmfs__again(dsmfs *a)
{
    int64_t end = dsmfs__now() + DSMFS__MAPPING_LIMIT;
    int memfd, err, lasts = dsmfs__lasts(a);
    uint64_t size = a->size;
    struct dsmfs__range *r;
    struct dsmfs__link *l;
    dsmfs__behead(a);
    do {
        if ((err = dsmfs__connect(a->link->at.sun_path, &l)) < 0)
            return err;
        a->link->areas--;
        (a->link = l)->areas++;
        memfd = dsmfs__ask(a);
    } while (memfd == -ENOTCONN && lasts && dsmfs__now() < end && dsmfs__poll(-1, 0, 20, NULL) == 0); /* until no daemon follows */
    if (memfd < 0)
        return memfd;
    a->size = size; /* what is mapped */
    for (r = dsmfs__ranges; r && !err; r = r->next) {
        if (r->area != a)
            continue;
        if (dsmfs__mmap(r->addr, r->len, dsmfs__first(a, r->prot), MAP_SHARED | MAP_FIXED, memfd, r->off) == MAP_FAILED)
            err = dsmfs__fail(errno, "map %s: %s", a->path, strerror(errno));
        else
            err = dsmfs__settle(r);
    }
    dsmfs__close(memfd);
    return err;
}

/* A child inherits none of the mappings. First their addresses are reserved, so that nothing else gets there; then each area is attached
   again. If an address is in use already, whatever is there stays. */
static void dsmfs__child(void)
{
    const int none = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    struct dsmfs__range *r, *next;
    struct dsmfs__link *l;
    dsmfs *a;
    for (l = dsmfs__links; l; l = l->next) {
        dsmfs__cut(l);
        l->waiters = NULL;
        l->reader = l->follower = 0;
        l->users = l->areas = l->lasts = 0;
        if (l->coming)
            dsmfs__drop_link(l->coming);
        l->coming = NULL;
        pthread_mutex_init(&l->mu, NULL);
    }
    dsmfs__pid = getpid();
    dsmfs__forked = 1;
    for (a = dsmfs__areas; a; a = a->next) {
        a->refs++; /* until all is done */
        a->link->areas++;
        a->asked = a->ended = a->readers = 0;
    }
    for (r = dsmfs__ranges; r; r = next) {
        char *p = MAP_FAILED;
        next = r->next;
        r->tracked = 0;
        if (!r->nofork)
            p = dsmfs__mmap(r->addr, r->len, PROT_NONE, none | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == r->addr)
            continue;
        if (p != MAP_FAILED) /* before Linux 4.17 */
            syscall(SYS_munmap, p, r->len);
        if (r->area->whole == r)
            r->area->whole = NULL;
        r->area->lost = r->nofork ? r->area->lost : -EEXIST;
        dsmfs__drop(r);
    }
    for (int reads = 0; reads < 2; reads++) /* attachments for writing first: then those for reading show the same memory */
        for (a = dsmfs__areas; a; a = a->next) {
            if ((a->access == DSMFS_READ) != reads)
                continue;
            if (a->refs > 1 && !a->lost && (a->lost = dsmfs__again(a)) < 0)
                for (r = dsmfs__ranges; r; r = r->next)
                    if (r->area == a)
                        dsmfs__mmap(r->addr, r->len, PROT_NONE, none | MAP_FIXED, -1, 0);
            if (a->lost)
                DSMFS_LOST(a->path, a->lost == -EEXIST ? "its place is taken" : dsmfs__text);
        }
    for (a = dsmfs__areas; a;) {
        dsmfs *after = a->next;
        if (a->refs == 1)
            a->lost = a->lost ? a->lost : -ENOTCONN;
        dsmfs__release(a);
        a = after;
    }
    dsmfs__sweep();
    dsmfs__forked = 0;
    dsmfs__unlock(dsmfs__signals);
}

/* A daemon that follows another. The link of one that has ended is followed by a link to the next one, which takes all areas over, once:

   1. A thread whose request finds that its link has ended calls dsmfs__follow, without dsmfs__maps. The first one is the follower, the others sleep until it has
      done a step. Whoever has no more time gives the part of the follower away: what is under way is in the link, not on a stack.
   2. The follower connects, and asks RESUME for each area. It waits for the answers without any lock, since the next daemon may take its time. So threads may
      detach, unmap, protect and fork meanwhile: with the link dead no request of theirs waits, and what must be tracked is tracked in the end.
      Signal handlers run in its waits. If one makes a request, that does steps of its own.
   3. With all answers, and dsmfs__maps held, the areas get the new link and their new numbers, and the daemon is told of their ranges.
   4. All requests are made again, by the new link.

   If the new daemon ends before 3, it begins again at 2; if later, the new link is followed in its turn. The connection on which RESUME was asked is not closed
   before, for nobody's sake: the daemon would take that for DETACH. */

/* Asks RESUME for the areas of l on the link n, unless it was asked; returns how many have no answer yet, or -1 if n has ended. dsmfs__maps is held. */
static int dsmfs__resume(struct dsmfs__link *l, struct dsmfs__link *n)
{
    int left = 0, dead;
    dsmfs *a;
    pthread_mutex_lock(&n->mu);
    if (!dsmfs__own(n))
        n->dead = 1;
    else
        dsmfs__receive(n);
    dead = n->dead;
    pthread_mutex_unlock(&n->mu);
    for (a = dsmfs__areas; a && !dead; a = a->next) {
        struct dsmfs__waiter *w = &a->resume;
        int err;
        int done = a->asked && __atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == DSMFS__DONE, early = done && w->reply.error == ETIMEDOUT;
        if (a->link != l || a->ended || !dsmfs__lasts(a) || (done && !early))
            continue;
        left++;
        if (early)
            a->asked = 0; /* the homes do not answer yet: asked again in the next step */
        if (a->asked || early)
            continue;
        memset(w, 0, sizeof *w);
        w->fd = -1;
        w->text = a->why;
        w->room = sizeof a->why;
        w->head.magic = DSMFS__MAGIC;
        w->head.version = DSMFS__VERSION;
        w->head.op = DSMFS__RESUME;
        w->head.a = (uint64_t)a->access;
        w->head.b = a->number;
        w->head.c = a->memory;
        w->head.length = (uint32_t)strlen(a->path);
        pthread_mutex_lock(&n->mu);
        w->head.tag = ++n->tags;
        w->next = n->waiters;
        n->waiters = w;
        pthread_mutex_unlock(&n->mu);
        a->asked = 1;
        if ((err = dsmfs__post(n, w, a->path, -1, 0)) < 0) { /* -ETIMEDOUT: the socket is full. The rest is asked when there are answers */
            dsmfs__unask(a, n);
            dead = err != -ETIMEDOUT;
            if (!dead)
                break;
        }
    }
    return dead ? -1 : left;
}

/* Gives the areas of l to the link n. dsmfs__maps is held. */
static void dsmfs__take_over(struct dsmfs__link *l, struct dsmfs__link *n)
{
    struct dsmfs__range *r;
    dsmfs *a;
    for (a = dsmfs__areas; a; a = a->next) {
        const struct dsmfs__head *h = &a->resume.reply;
        if (a->link != l)
            continue;
        if (!a->ended && (!a->asked || h->error || h->op != DSMFS__RESUME || h->b != a->number)) {
            if (!a->asked || !h->error)
                snprintf(a->why, sizeof a->why, "%s", a->asked ? "it is another area" : "it does not outlive a daemon");
            __atomic_store_n(&a->ended, 1, __ATOMIC_RELEASE);
        } else if (!a->ended) {
            a->kind = (int)h->d;
            __atomic_store_n(&a->id, h->attachment, __ATOMIC_SEQ_CST);
        }
        dsmfs__close(a->asked ? a->resume.fd : -1); /* it comes with none */
        a->asked = 0;
        __atomic_store_n(&a->link, n, __ATOMIC_SEQ_CST);
        l->areas--;
        n->areas++;
        n->lasts |= !a->ended && dsmfs__lasts(a);
        dsmfs__retire(a);
    }
    n->next = dsmfs__links;
    dsmfs__links = n;
    l->coming = NULL;
    for (r = dsmfs__ranges; r; r = r->next) {
        a = r->area;
        if (a->link != n)
            continue;
        r->tracked = 0;
        if (a->ended || !dsmfs__wants(a, r->prot) || dsmfs__track(r) >= 0)
            continue;
        snprintf(a->why, sizeof a->why, "%.*s", (int)sizeof a->why - 1, dsmfs__text);
        __atomic_store_n(&a->ended, 1, __ATOMIC_RELEASE);
        dsmfs__part(a);
    }
    pthread_mutex_lock(&l->mu);
    __atomic_store_n(&l->followed, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&l->mu);
}

/* Does what can be done now, and then waits for ms, if there is more. */
static void dsmfs__step(struct dsmfs__link *l, int64_t ms, const uint64_t *mask)
{
    uint64_t old = dsmfs__lock();
    struct dsmfs__link *n = l->coming;
    int left = 0, fd = -1, gone = 0;
    if (l->followed || (!n && !(n = l->coming = dsmfs__dial(l->at.sun_path, SOCK_NONBLOCK)))) {
        gone = !l->followed && errno != EAGAIN && errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        ms = l->followed || gone ? 0 : 20;
    } else if ((left = dsmfs__resume(l, n)) < 0) {
        dsmfs *a;
        for (a = dsmfs__areas; a; a = a->next)
            if (a->link == l)
                dsmfs__unask(a, n);
        gone = n->gone; /* what answered is no daemon */
        l->coming = NULL;
        dsmfs__drop_link(n);
        l->pause = l->pause ? l->pause * 2 < 1000 ? l->pause * 2 : 1000 : 10;
        ms = gone ? 0 : ms < l->pause ? ms : l->pause;
    } else if (left > 0) {
        fd = n->fd;
    } else {
        dsmfs__take_over(l, n);
        ms = 0;
    }
    if (gone) {
        pthread_mutex_lock(&l->mu);
        l->gone = 1;
        pthread_mutex_unlock(&l->mu);
    }
    dsmfs__unlock(old); /* signals stay blocked: old is the caller's mask, in which they are */
    if (ms)
        dsmfs__poll(fd, POLLIN, ms, mask);
}

/* Returns 0 when another link has the areas of one that has ended. Until then signals come. -ENOTCONN: no daemon follows; -ETIMEDOUT: none did until end. The
   link is pinned, and dsmfs__maps is not held. */
static int dsmfs__follow(struct dsmfs__link *l, int64_t end)
{
    uint64_t old = dsmfs__block();
    pid_t self = (pid_t)syscall(SYS_gettid);
    int state = 1, saved = errno;
    for (;;) {
        int64_t left = end - dsmfs__now();
        uint32_t turn;
        pid_t before;
        pthread_mutex_lock(&l->mu);
        turn = l->turn;
        before = l->follower;
        if (l->followed)
            state = 0;
        else if (!l->lasts || l->gone || getpid() != dsmfs__pid)
            state = -ENOTCONN;
        else if (left <= 0)
            state = -ETIMEDOUT;
        else if (!before)
            l->follower = self;
        pthread_mutex_unlock(&l->mu);
        if (state <= 0)
            break;
        left = left < DSMFS__LOOK ? left : DSMFS__LOOK;
        if (before && before != self) {
            struct timespec t = {left / 1000, left % 1000 * 1000000};
            dsmfs__restore(old);
            syscall(SYS_futex, &l->turn, 128 /* FUTEX_WAIT_PRIVATE */, turn, &t, NULL, 0);
            dsmfs__block();
            continue;
        }
        dsmfs__step(l, left, &old);
        pthread_mutex_lock(&l->mu);
        l->follower = before;
        l->turn++;
        pthread_mutex_unlock(&l->mu);
        syscall(SYS_futex, &l->turn, 129 /* FUTEX_WAKE_PRIVATE */, INT32_MAX, NULL, NULL, 0);
    }
    errno = saved;
    dsmfs__restore(old);
    return state;
}

/* Before dsmfs__maps is taken for requests to a daemon: if it has ended, and there are areas that outlive it, waits for the next one. Returns 1 if that has
   come, so that a request which has failed may be made again. */
static int dsmfs__ready(const char *socket_path)
{
    uint64_t old = dsmfs__lock();
    struct dsmfs__link *l;
    int found = 0, err;
    for (l = dsmfs__links; l && !found; l = found ? l : l->next) {
        if (strcmp(l->at.sun_path, socket_path))
            continue;
        pthread_mutex_lock(&l->mu);
        if (l->lasts && !l->gone && !l->followed && !l->dead && getpid() == dsmfs__pid && dsmfs__own(l))
            dsmfs__receive(l);
        found = l->lasts && !l->gone && !l->followed && l->dead;
        pthread_mutex_unlock(&l->mu);
    }
    if (found)
        __atomic_add_fetch(&l->users, 1, __ATOMIC_SEQ_CST);
    dsmfs__unlock(old);
    if (!found)
        return 0;
    err = dsmfs__follow(l, INT64_MAX / 4);
    dsmfs__unpin(l);
    return !err;
}

static void dsmfs__unmap(dsmfs *a)
{
    if (a->whole)
        dsmfs__discard(a->whole);
    a->whole = NULL;
}

/* One request about an area; the reply's a or -errno. If the daemon ends meanwhile, and another follows, that one is asked. */
static int64_t dsmfs__request(dsmfs *a, int op, uint64_t arg, char *text, size_t room, int64_t limit)
{
    int64_t end = limit ? dsmfs__now() + limit : INT64_MAX / 4, left = limit;
    for (;;) {
        struct dsmfs__waiter w = {0};
        struct dsmfs__link *l;
        int err, next = -ENOTCONN;
        if (a->lost)
            return dsmfs__fail(ENOTCONN, "%s could not be attached again after fork", a->path);
        if (__atomic_load_n(&a->ended, __ATOMIC_ACQUIRE))
            return dsmfs__fail(ENOTCONN, "the daemon of %s has ended, and that which followed does not have it: %s", a->path, a->why);
        l = dsmfs__pin(a, &w.head.attachment);
        w.head.op = (uint16_t)op;
        w.head.a = arg;
        w.head.b = (uint64_t)left;
        w.text = text;
        w.room = room;
        err = dsmfs__call(l, &w, NULL, -1, limit ? left + DSMFS__PATIENCE : 0, 0); /* the daemon's clock decides */
        if (w.lost && op != DSMFS__EXPECT)
            next = dsmfs__follow(l, end);
        dsmfs__unpin(l);
        if (next == -ETIMEDOUT)
            return dsmfs__fail(ETIMEDOUT, "the daemon of %s has ended, and none has followed within %lld ms", a->path, (long long)limit);
        if (next < 0)
            return err < 0 ? err : (int64_t)(op == DSMFS__STATS ? w.reply.length : w.reply.a);
        left = end - dsmfs__now();
        left = !limit ? 0 : left > 0 ? left : 1;
    }
}

/* Attaches and maps what is at a place. */
static int dsmfs__attach_at(const struct dsmfs__place *p, int access, dsmfs **out)
{
    uint64_t old = dsmfs__lock();
    int memfd = -1, err;
    dsmfs *a = NULL;
    err = dsmfs__open(p->socket, p->path, 0, access, &a, &memfd);
    if (!err)
        err = dsmfs__map_whole(a, memfd);
    if (err < 0 && a)
        dsmfs__release(a);
    dsmfs__close(memfd);
    dsmfs__unlock(old);
    if (!err)
        *out = a;
    return err;
}

DSMFS_API int dsmfs_attach(const char *socket, const char *path, int access, dsmfs **out)
{
    struct dsmfs__place *p = DSMFS_MALLOC(sizeof *p);
    int err = p ? dsmfs__look(socket, path, 0, p) : dsmfs__fail(ENOMEM, "out of memory");
    *out = NULL;
    if (!err) {
        dsmfs__ready(p->socket);
        do
            err = dsmfs__attach_at(p, access, out);
        while (err == -ENOTCONN && dsmfs__ready(p->socket));
    }
    DSMFS_FREE(p);
    return err;
}

DSMFS_API int dsmfs_create(const char *socket, const char *path, uint64_t size, unsigned perm, int flags, const char *settings)
{
    struct dsmfs__place *p = DSMFS_MALLOC(sizeof *p);
    struct dsmfs__link *l;
    int n, err = p ? dsmfs__look(socket, path, 1, p) : dsmfs__fail(ENOMEM, "out of memory"), lost = 0, again = !err;
    if (!err) {
        n = snprintf(p->line, sizeof p->line, "%s\n%s", p->path, settings ? settings : "");
        if (n >= (int)sizeof p->line)
            err = dsmfs__fail(ENAMETOOLONG, "path and settings are longer than %d bytes", (int)sizeof p->line - 1);
        else
            dsmfs__ready(p->socket);
    }
    for (again = !err; again;) {
        struct dsmfs__waiter w = {0};
        uint64_t old = dsmfs__lock();
        if (!(err = dsmfs__connect(p->socket, &l))) {
            w.head.op = DSMFS__CREATE;
            w.head.a = size;
            w.head.b = perm;
            w.head.c = flags & DSMFS_EXCL;
            err = dsmfs__call(l, &w, p->line, -1, 0, 1);
            dsmfs__sweep();
        }
        dsmfs__unlock(old);
        if (err == -EEXIST && lost)
            err = dsmfs__fail(ENOTCONN, "the daemon ended while it made %s: what is there may be that, or somebody else's", p->path);
        lost |= w.lost;
        again = err == -ENOTCONN && dsmfs__ready(p->socket);
    }
    DSMFS_FREE(p);
    return err;
}

DSMFS_API void *dsmfs_data(dsmfs *a) { return a->whole ? a->whole->addr : NULL; }
DSMFS_API size_t dsmfs_size(dsmfs *a) { return a->size; }
DSMFS_API int64_t dsmfs_publish(dsmfs *a) { return dsmfs__request(a, DSMFS__PUBLISH, 0, NULL, 0, 0); }
DSMFS_API int64_t dsmfs_acquire(dsmfs *a) { return dsmfs__request(a, DSMFS__ACQUIRE, 0, NULL, 0, 0); }
DSMFS_API int64_t dsmfs_sync(dsmfs *a) { return dsmfs__request(a, DSMFS__SYNC, 0, NULL, 0, 0); }

/* Sleeps on the header page as long as updates come unasked; otherwise the daemon waits. A version that does not come soon may be one that
   only other nodes have heard of: then the daemon is asked to look for it. Returns 0 if the daemon must wait for the time that is left, or the one
   that follows it: nobody tells there any more. */
static int64_t dsmfs__watch_for(dsmfs *a, int64_t version, int64_t timeout_ms, int64_t *past)
{
    struct dsmfs__head_pages *h = version > 0 ? dsmfs__watch(a) : NULL;
    int64_t start = dsmfs__now(), ask = DSMFS__SOON;
    while (h) {
        uint32_t word = __atomic_load_n(&h->line->word, __ATOMIC_ACQUIRE), life = __atomic_load_n(&h->life->word, __ATOMIC_ACQUIRE);
        uint32_t state = __atomic_load_n(&h->line->state, __ATOMIC_ACQUIRE);
        int64_t whole = dsmfs__told(a, h, &h->line->whole), left;
        *past = dsmfs__now() - start;
        if (whole == -ENOTCONN)
            break;
        if (whole < 0)
            return whole;
        if (whole >= version)
            return dsmfs__told(a, h, &h->line->here);
        if (timeout_ms && *past >= timeout_ms)
            return dsmfs__fail(ETIMEDOUT, "version %lld did not come within %lld ms", (long long)version, (long long)timeout_ms);
        if (!(state & DSMFS__FOLLOWS))
            break;
        if (*past >= ask) {
            ask = *past + DSMFS__EXPECTED / 2;
            dsmfs__request(a, DSMFS__EXPECT, (uint64_t)version, NULL, 0, DSMFS__EXPECTED);
            continue;
        }
        left = timeout_ms && timeout_ms < ask ? timeout_ms - *past : ask - *past;
        dsmfs__sleep(h, word, life, left < DSMFS__LOOK ? left : DSMFS__LOOK);
    }
    return 0;
}

DSMFS_API int64_t dsmfs_wait(dsmfs *a, int64_t version, int64_t timeout_ms)
{
    int64_t past = 0, got;
    if (timeout_ms > DSMFS__CENTURY)
        timeout_ms = DSMFS__CENTURY; /* sums with it do not overflow */
    dsmfs__enter(a);
    got = dsmfs__watch_for(a, version, timeout_ms, &past);
    dsmfs__leave(a);
    if (got && got != -ENOTCONN)
        return got;
    return dsmfs__request(a, DSMFS__WAIT, (uint64_t)version, NULL, 0, !timeout_ms ? 0 : timeout_ms > past ? timeout_ms - past : 1);
}

static int64_t dsmfs__stats_version(dsmfs *a);

DSMFS_API int64_t dsmfs_version(dsmfs *a)
{
    struct dsmfs__head_pages *h;
    int64_t v = -ENOTCONN;
    dsmfs__enter(a);
    if ((h = dsmfs__watch(a)))
        v = dsmfs__told(a, h, &h->line->here);
    dsmfs__leave(a);
    return v == -ENOTCONN ? dsmfs__stats_version(a) : v;
}

/* With a daemon that has no header pages, or has ended. */
static int64_t dsmfs__stats_version(dsmfs *a)
{
    char text[DSMFS__PAYLOAD + 1], *line;
    int64_t n = dsmfs__request(a, DSMFS__STATS, 0, text, sizeof text, 0);
    if (n < 0)
        return n;
    for (line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, "version ", 8))
            return strtoll(line + 8, NULL, 10);
    return dsmfs__fail(EPROTO, "the stats of %s have no version", a->path);
}

DSMFS_API int dsmfs_stats(dsmfs *a, char *buf, size_t n)
{
    return n ? (int)dsmfs__request(a, DSMFS__STATS, 0, buf, n, 0) : dsmfs__fail(EINVAL, "no room");
}

/* Attaches and maps the area again. */
static int dsmfs__renew(dsmfs *a, char *socket)
{
    uint64_t old = dsmfs__lock(), before = a->id, id;
    int memfd, err;
    memcpy(socket, a->link->at.sun_path, sizeof a->link->at.sun_path);
    dsmfs__unmap(a);
    err = memfd = dsmfs__ask(a);
    if (memfd >= 0) {
        id = a->id;
        a->id = before;
        dsmfs__end(a);
        a->id = id;
        err = dsmfs__map_whole(a, memfd);
    }
    if (err < 0)
        a->size = 0;
    dsmfs__close(memfd);
    dsmfs__unlock(old);
    return err;
}

DSMFS_API int dsmfs_resize(dsmfs *a, uint64_t size)
{
    int64_t got = dsmfs__request(a, DSMFS__RESIZE, size, NULL, 0, 0);
    char socket[sizeof ((struct sockaddr_un *)0)->sun_path];
    int err;
    if (got < 0)
        return (int)got;
    do
        err = dsmfs__renew(a, socket);
    while (err == -ENOTCONN && dsmfs__ready(socket));
    return err;
}

DSMFS_API int dsmfs_detach(dsmfs *a)
{
    uint64_t old = dsmfs__lock();
    dsmfs__unmap(a);
    dsmfs__release(a);
    dsmfs__unlock(old);
    return 0;
}

#endif /* DSMFS_IMPLEMENTATION */
