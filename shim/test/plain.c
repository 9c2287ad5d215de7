/* A program that knows nothing of dsmfs: it maps files and does to the mappings what programs do. The tests run it with the
   library preloaded. Usage: plain STEP FILE PEER, where PEER is the same file in the mount of another node. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const char *self, *file, *peer;
static int line; /* of the check that is run, for death() */

#define CHECK(x) (line = __LINE__, (x) ? (void)0 : fail(#x))
#define FAILS(x, e) (errno = 0, CHECK((long)(x) == -1 && errno == (e)))

static void fail(const char *what)
{
    fprintf(stderr, "plain.c:%d: %s (errno %d, %s)\n", line, what, errno, strerror(errno));
    _exit(1);
}

static int open_file(int flags, off_t size)
{
    int fd = open(file, flags, 0644);
    CHECK(fd >= 0);
    if (size >= 0)
        CHECK(ftruncate(fd, size) == 0);
    return fd;
}

static char *map(int fd, size_t len, int prot)
{
    char *p = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* What /proc/self/maps says is mapped at p: 'm' a memfd, 'f' another file, 'a' nothing with a name, 0 nothing at all. */
static int kind(void *p)
{
    char text[512];
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    while (!found && fgets(text, sizeof text, f)) {
        unsigned long lo, hi, at = (unsigned long)p;
        CHECK(sscanf(text, "%lx-%lx", &lo, &hi) == 2);
        if (lo <= at && at < hi)
            found = strstr(text, "/memfd:") ? 'm' : strchr(text, '/') ? 'f' : 'a';
    }
    fclose(f);
    return found;
}

static void peer_bytes(void *to, size_t n, off_t off)
{
    int fd = open(peer, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(pread(fd, to, n, off) == (ssize_t)n);
    close(fd);
}

static int peer_byte(off_t off)
{
    unsigned char c;
    peer_bytes(&c, 1, off);
    return c;
}

/* Stores a byte, publishes by msync and looks at the other node. */
static void published(char *p, off_t off, int value)
{
    *p = (char)value;
    CHECK(msync((void *)((unsigned long)p & ~(PAGE - 1UL)), PAGE, MS_SYNC) == 0);
    CHECK(peer_byte(off) == (value & 255));
}

static void basic(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 4 * PAGE), ro = open(file, O_RDONLY);
    char *p, *q, *r, buf[6] = "";
    errno = 77;
    p = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE);
    CHECK(errno == 77);
    q = map(ro, 4 * PAGE, PROT_READ);
    r = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(kind(p) == 'm' && kind(q) == 'm' && kind(r) == 'f');
    memcpy(p, "hello", 5);
    CHECK(!memcmp(q, "hello", 5));
    CHECK(msync(p, 4 * PAGE, MS_SYNC) == 0 && errno == 77);
    CHECK(pread(fd, buf, 5, 0) == 5 && !strcmp(buf, "hello"));
    CHECK(peer_byte(4) == 'o');
    CHECK(pwrite(fd, "J", 1, 0) == 1 && p[0] == 'J');
    published(p + PAGE, PAGE, 9);
    p[2 * PAGE] = 8;
    CHECK(fsync(fd) == 0 && peer_byte(2 * PAGE) == 8);
    p[2 * PAGE] = 7;
    CHECK(munmap(p, 4 * PAGE) == 0 && kind(p) == 0);
    CHECK(fdatasync(fd) == 0 && peer_byte(2 * PAGE) == 7);
    FAILS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0), EACCES);
    FAILS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1), EINVAL);
    FAILS(msync(q + 1, PAGE, MS_SYNC), EINVAL);
    FAILS(munmap(q + 1, PAGE), EINVAL);
    FAILS(fsync(-1), EBADF);
    CHECK(msync(q, PAGE, MS_ASYNC) == 0);
}

static void parts(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 8 * PAGE);
    char *p = map(fd, 8 * PAGE, PROT_READ | PROT_WRITE), *a;
    memset(p, 1, 8 * PAGE);
    CHECK(munmap(p + 2 * PAGE, PAGE) == 0);
    CHECK(kind(p) == 'm' && kind(p + 2 * PAGE) == 0 && kind(p + 3 * PAGE) == 'm');
    published(p + PAGE, PAGE, 2);
    published(p + 3 * PAGE, 3 * PAGE, 3);
    a = mmap(p + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(a == p + 5 * PAGE && *a == 0 && kind(a) == 'a');
    *a = 55;
    published(p + 7 * PAGE, 7 * PAGE, 4);
    published(p + 4 * PAGE, 4 * PAGE, 5);
    CHECK(peer_byte(5 * PAGE) == 1);
    CHECK(mmap(p + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 6 * PAGE) == p + PAGE);
    published(p + PAGE, 6 * PAGE, 6);
    CHECK(p[6 * PAGE] == 6);
    CHECK(munmap(p, 8 * PAGE) == 0 && !kind(p) && !kind(p + 5 * PAGE) && !kind(p + 7 * PAGE));
}

static void moves(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 4 * PAGE);
    char *p = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE), *q, *room;
    published(p, 0, 1);
    CHECK(ftruncate(fd, 64 * PAGE) == 0);
    p = mremap(p, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED && kind(p) == 'm' && *p == 1);
    published(p + 63 * PAGE, 63 * PAGE, 2);
    room = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    q = mremap(p + 8 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    CHECK(q == room && kind(q) == 'm' && kind(p + 8 * PAGE) == 0 && kind(p) == 'm' && kind(p + 16 * PAGE) == 'm');
    published(q + PAGE, 9 * PAGE, 3);
    published(p + PAGE, PAGE, 4);
    published(p + 20 * PAGE, 20 * PAGE, 5);
    q = mremap(p, 0, 8 * PAGE, MREMAP_MAYMOVE); /* a second mapping of the same */
    CHECK(q != MAP_FAILED && q != p && kind(q) == 'm' && kind(p) == 'm');
    published(q + 2 * PAGE, 2 * PAGE, 6);
    CHECK(p[2 * PAGE] == 6);
    published(p + 3 * PAGE, 3 * PAGE, 7);
    room = mremap(p + 2 * PAGE, 0, 4 * PAGE, MREMAP_MAYMOVE); /* of its middle */
    CHECK(room != MAP_FAILED && *room == 6);
    published(room + 2 * PAGE, 4 * PAGE, 9);
    CHECK(p[4 * PAGE] == 9 && munmap(room, 4 * PAGE) == 0);
    CHECK(mremap(q, 8 * PAGE, 2 * PAGE, 0) == q && kind(q + 2 * PAGE) == 0);
    published(q + PAGE, PAGE, 8);
    FAILS(mremap(p + 1, PAGE, PAGE, 0), EINVAL);
}

static void protects(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 4 * PAGE), ro = open(file, O_RDONLY);
    char *p = map(fd, 4 * PAGE, PROT_READ), *q = map(ro, PAGE, PROT_READ);
    FAILS(mprotect(q, PAGE, PROT_READ | PROT_WRITE), EACCES);
    CHECK(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0 && kind(p) == 'm' && kind(p + PAGE) == 'm');
    published(p + PAGE, PAGE, 1);
    CHECK(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
    published(p + 3 * PAGE, 3 * PAGE, 2);
    CHECK(mprotect(p, PAGE, PROT_READ) == 0);
    published(p + 2 * PAGE, 2 * PAGE, 3);
    CHECK(mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0);
    published(p, 0, 4);
}

/* What mprotect cut is one mapping again when its parts have the same protection: mremap takes it as a whole. */
static void joins(void)
{
    enum { N = 8, BOTH = PROT_READ | PROT_WRITE };
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 64 * PAGE), prot = BOTH;
    for (int n = 1; n <= 3; n++) {
        char *p = map(fd, N * PAGE, prot);
        CHECK(mprotect(p + PAGE, PAGE, PROT_NONE) == 0 && mprotect(p + 3 * PAGE, 2 * PAGE, BOTH) == 0);
        CHECK(mprotect(p + 6 * PAGE, PAGE, BOTH) == 0 && mprotect(p + 3 * PAGE, PAGE, PROT_READ) == 0);
        FAILS(mremap(p, N * PAGE, 2 * N * PAGE, MREMAP_MAYMOVE), EFAULT);
        CHECK(mprotect(p, N * PAGE, BOTH) == 0);
        CHECK(mprotect(p + 2 * PAGE, PAGE, PROT_READ) == 0 && mprotect(p + 2 * PAGE, PAGE, BOTH) == 0);
        CHECK(madvise(p + 5 * PAGE, PAGE, MADV_DONTFORK) == 0 && madvise(p + 5 * PAGE, PAGE, MADV_DOFORK) == 0);
        for (off_t i = 0; i < N; i++)
            published(p + i * PAGE, i * PAGE, n * (int)(i + 1));
        p = mremap(p, N * PAGE, 2 * N * PAGE, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED && kind(p) == 'm');
        for (off_t i = 0; i < 2 * N; i++)
            published(p + i * PAGE, i * PAGE, n * (int)(i + 2));
        CHECK(munmap(p, 2 * N * PAGE) == 0);
        prot = prot == BOTH ? PROT_READ : PROT_NONE;
    }
}

/* More parts than the daemon tracks: ENOMEM, as from the kernel for a process with too many mappings, and never a store that nobody sees. */
static void many(void)
{
    enum { MOST = 1024, N = 2 * MOST + 8, BOTH = PROT_READ | PROT_WRITE };
    static char seen[N * PAGE];
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, N * PAGE);
    char *p = map(fd, N * PAGE, BOTH), *last = p + (N - 3) * PAGE;
    for (int step = MOST / 2; step; step /= 2) /* halves, then quarters ...: small parts are tracked faster */
        for (int i = step; i < MOST; i += 2 * step)
            CHECK(mprotect(p + (2 * i - 1) * PAGE, PAGE, PROT_READ) == 0);
    FAILS(mprotect(last, PAGE, PROT_READ), ENOMEM);
    FAILS(munmap(last, PAGE), ENOMEM);
    FAILS(madvise(last, PAGE, MADV_DONTFORK), ENOMEM);
    FAILS(mremap(p, 0, PAGE, MREMAP_MAYMOVE), ENOMEM);
    FAILS(mmap(last, PAGE, BOTH, MAP_SHARED | MAP_FIXED, fd, 0), ENOMEM);
    FAILS(mmap(last, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), ENOMEM);
    for (int i = 0; i < N; i += i < 2 * MOST - 2 ? 2 : 1)
        p[i * PAGE] = (char)(i % 100 + 1);
    CHECK(fsync(fd) == 0);
    peer_bytes(seen, sizeof seen, 0);
    for (int i = 0; i < N; i += i < 2 * MOST - 2 ? 2 : 1)
        CHECK(seen[i * PAGE] == i % 100 + 1);
    CHECK(munmap(p + (N - 2) * PAGE, 2 * PAGE) == 0); /* which makes no other part */
    for (int i = 1; i < MOST; i += 2)
        CHECK(mprotect(p + i * PAGE, PAGE, BOTH) == 0);
    CHECK(mprotect(last - PAGE, PAGE, PROT_READ) == 0); /* there is room again */
    CHECK(mprotect(p, 2 * MOST * PAGE, BOTH) == 0);
    for (int i = 0; i < 2 * MOST; i++)
        p[i * PAGE] = (char)(i % 100 + 2);
    *last = 1;
    CHECK(fsync(fd) == 0);
    peer_bytes(seen, sizeof seen, 0);
    for (int i = 0; i < 2 * MOST; i++)
        CHECK(seen[i * PAGE] == i % 100 + 2);
    CHECK(seen[(N - 3) * PAGE] == 1);
}

/* How a child that runs f ends: its exit status, or 1000 and the signal. */
static int child(void (*f)(char *), char *p)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        f(p);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* An allocator of the program: it maps and unmaps with its lock held, also before and after a fork. */
static pthread_mutex_t arena = PTHREAD_MUTEX_INITIALIZER;
static char *spare;
static int stop;

static char *chunk(void) { return mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static void use_all_calls(void)
{
    char *p = chunk(), *q;
    CHECK(p != MAP_FAILED && mprotect(p, PAGE, PROT_READ) == 0 && madvise(p, PAGE, MADV_DONTFORK) == 0);
    CHECK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    FAILS(madvise(p, PAGE, MADV_REMOVE), EINVAL);
    CHECK((q = mremap(p + 3 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
    CHECK(munmap(p, 3 * PAGE) == 0 && munmap(q, 2 * PAGE) == 0);
}

static void arena_prepare(void)
{
    CHECK(pthread_mutex_lock(&arena) == 0);
    use_all_calls();
    spare = chunk();
}

static void arena_parent(void)
{
    CHECK(munmap(spare, 4 * PAGE) == 0);
    use_all_calls();
    CHECK(pthread_mutex_unlock(&arena) == 0);
}

static void arena_child(void)
{
    CHECK(munmap(spare, 4 * PAGE) == 0);
    CHECK(pthread_mutex_init(&arena, NULL) == 0);
}

static void *allocates(void *arg)
{
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        CHECK(pthread_mutex_lock(&arena) == 0);
        use_all_calls();
        CHECK(pthread_mutex_unlock(&arena) == 0 && sched_yield() == 0);
    }
    return arg;
}

static void touch(char *p) { _exit(*(volatile char *)p); }
static void publish_in_child(char *p)
{
    CHECK(kind(p) == 'm');
    published(p, 0, 21);
    CHECK(child(touch, p) == 21); /* of a child of the child */
}
static void bare_clone(char *p)
{
    int status;
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        volatile char c = *p;
        syscall(SYS_exit, c);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* The handlers of the allocator are called while the library's have its lock. */
static void forks_with_an_allocator(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 4 * PAGE);
    pthread_t t;
    char *p;
    CHECK(pthread_atfork(arena_prepare, arena_parent, arena_child) == 0);
    p = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE);
    *p = 21;
    CHECK(child(touch, p) == 21); /* alone */
    CHECK(pthread_create(&t, NULL, allocates, NULL) == 0);
    for (int n = 1; n <= 20; n++) {
        char *q = map(fd, PAGE, PROT_READ | PROT_WRITE);
        *p = (char)n;
        CHECK(child(touch, q) == n);
        CHECK(munmap(q, PAGE) == 0); /* the allocator may get this place at once */
        CHECK(child(touch, p) == n);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(t, NULL) == 0);
    published(p, 0, 22);
}

static void forks(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 4 * PAGE), status;
    char *p = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE), *args[4] = {(char *)self, "basic", (char *)file, (char *)peer};
    char *argv[5] = {args[0], args[1], args[2], args[3], NULL};
    extern char **environ;
    pid_t pid;
    *p = 20;
    CHECK(child(touch, p) == 20);
    CHECK(child(publish_in_child, p) == 0 && *p == 21);
    published(p + PAGE, PAGE, 22);
    CHECK(child(bare_clone, p) == 0);
    CHECK(madvise(p, PAGE, MADV_DONTFORK) == 0);
    CHECK(child(touch, p) == 1000 + SIGSEGV);
    CHECK(child(touch, p + PAGE) == 22);
    CHECK(madvise(p, PAGE, MADV_DOFORK) == 0);
    CHECK(child(touch, p) == 21);
    CHECK(munmap(p, 4 * PAGE) == 0);
    CHECK(posix_spawn(&pid, self, NULL, NULL, argv, environ) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* A child whose file was removed or replaced has that file or no mapping, never zeroes nor the new file. */
static void forks_after_removal(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, PAGE), end;
    char *p = map(fd, PAGE, PROT_READ | PROT_WRITE);
    *p = 1;
    CHECK(unlink(file) == 0);
    CHECK((end = child(touch, p)) == 1000 + SIGSEGV || end == 1);
    CHECK(*p == 1);
    close(fd);
    close(open_file(O_RDWR | O_CREAT | O_EXCL, PAGE));
    CHECK((end = child(touch, p)) == 1000 + SIGSEGV || end == 1);
}

static void tail(void)
{
    int i, fd = open_file(O_RDWR | O_CREAT | O_TRUNC, PAGE + 10);
    char *p = map(fd, 8 * PAGE, PROT_READ | PROT_WRITE);
    CHECK(kind(p) == 'm');
    published(p + PAGE + 9, PAGE + 9, 1);
    for (i = 0; i < 20; i++) {
        p[4 * PAGE] = p[5 * PAGE] = 1; /* a store past the end is lost */
        if (i % 2)
            published(p, 0, i); /* this finds it, and has its memory freed */
        CHECK(ftruncate(fd, 8 * PAGE) == 0);
        CHECK(p[5 * PAGE] == 0);
        published(p + 4 * PAGE, 4 * PAGE, 2);
        published(p + 7 * PAGE, 7 * PAGE, 3);
        CHECK(peer_byte(5 * PAGE) == 0);
        CHECK(ftruncate(fd, PAGE + 10) == 0);
    }
}

static void closes(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, PAGE), last = -1, n;
    char *p = map(fd, PAGE, PROT_READ | PROT_WRITE);
    struct stat s;
    published(p, 0, 1);
    for (n = 3; n < 1024; n++) {
        if (fstat(n, &s) == 0 && S_ISSOCK(s.st_mode))
            last = n;
        close(n);
    }
    CHECK(last >= 0);
    published(p, 0, 2);
    CHECK(close_range(3, ~0U, 0) == 0);
    FAILS(close_range(5, 4, 0), EINVAL);
    published(p, 0, 3);
    closefrom(3);
    published(p, 0, 4);
    fd = open("/dev/null", O_RDWR);
    CHECK(dup2(fd, last) == last && fstat(last, &s) == 0 && S_ISCHR(s.st_mode));
    published(p, 0, 5);
    CHECK(close(last) == 0);
    CHECK(dup2(fd, fd) == fd);
    FAILS(dup2(999, 999), EBADF);
}

enum { THREADS = 6, ROUNDS = 40 };
static char *shared;

static void *worker(void *arg)
{
    long i = (long)arg;
    for (int n = 1; n <= ROUNDS; n++) {
        char *p = shared + i * PAGE, *q;
        int fd;
        *p = (char)n;
        CHECK(msync(p, PAGE, MS_SYNC) == 0);
        fd = open_file(O_RDWR, -1);
        q = mmap(NULL, THREADS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(q != MAP_FAILED && q[i * PAGE] == n);
        q[i * PAGE + 1] = (char)n;
        CHECK(munmap(q, THREADS * PAGE) == 0);
        close(fd);
        if (i == 0 && n % 10 == 0)
            CHECK(child(touch, p) == n);
    }
    return NULL;
}

static void threads(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, THREADS * PAGE);
    pthread_t t[THREADS];
    shared = map(fd, THREADS * PAGE, PROT_READ | PROT_WRITE);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, worker, (void *)i) == 0);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(fsync(fd) == 0);
    for (long i = 0; i < THREADS; i++)
        CHECK(peer_byte(i * PAGE) == ROUNDS && peer_byte(i * PAGE + 1) == ROUNDS);
}

static volatile int alarms, failures;
static void on_alarm(int sig)
{
    (void)sig;
    alarms++;
    failures += msync(shared, PAGE, MS_SYNC) != 0;
}

/* A handler that asks in the middle of what its thread does. One alarm for each round, sooner or later in it: a timer that goes on by itself
   would leave the program no time at all once the handler takes longer than its period. */
static void signals(void)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, THREADS * PAGE);
    shared = map(fd, THREADS * PAGE, PROT_READ | PROT_WRITE);
    signal(SIGALRM, on_alarm);
    for (int n = 0; n < 300 || alarms < 100; n++) {
        struct itimerval once = {{0, 0}, {0, 1 + n % 97 * 20}};
        char *p;
        CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
        shared[PAGE]++;
        CHECK(msync(shared, 2 * PAGE, MS_SYNC) == 0);
        p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(p != MAP_FAILED && munmap(p, PAGE) == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL) == 0);
    CHECK(failures == 0);
    published(shared, 0, 3);
}

/* Stores to the mapping and reads by every other way, and the other way round, 200 times: never is there another value. Returns how often
   there was. */
static int disagree(volatile char *p, int fd, FILE *f)
{
    int wrong = 0;
    char buf[3 * PAGE];
    for (int n = 1; n <= 200; n++) {
        off_t off = (off_t)n * 37 % (2 * PAGE); /* some reads cross a page */
        char was = (char)n;
        p[off] = was;
        CHECK(pread(fd, buf, 1, off) == 1);
        wrong += buf[0] != was;
        p[off] = (char)(was + 1);
        CHECK(pread(fd, buf, sizeof buf, 0) >= 2 * PAGE);
        wrong += buf[off] != (char)(was + 1);
        p[off] = (char)(was + 2);
        CHECK(lseek(fd, off, SEEK_SET) == off && read(fd, buf, 7) == 7);
        wrong += buf[0] != (char)(was + 2);
        memset(buf, n, 100);
        CHECK(pwrite(fd, buf, 100, off) == 100);
        wrong += p[off] != (char)n || p[off + 99] != (char)n;
        p[off] = (char)(was + 3);
        CHECK(fseek(f, off, SEEK_SET) == 0 && fflush(f) == 0);
        setvbuf(f, NULL, _IONBF, 0);
        wrong += getc(f) != (unsigned char)(was + 3);
        CHECK(fseek(f, off, SEEK_SET) == 0 && putc(n + 5, f) != EOF && fflush(f) == 0);
        wrong += p[off] != (char)(n + 5);
    }
    return wrong;
}

static void two_ways(const char *merge)
{
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC, 3 * PAGE), late;
    FILE *f = fopen(file, "r+"), *after;
    volatile char *p;
    pid_t pid;
    int status;
    if (merge)
        CHECK(fsetxattr(fd, "user.dsm.dtype", "u8", 2, 0) == 0 && fsetxattr(fd, "user.dsm.merge", merge, strlen(merge), 0) == 0);
    CHECK(f);
    p = map(fd, 4 * PAGE, PROT_READ | PROT_WRITE);
    CHECK(kind((void *)p) == 'm');
    CHECK(disagree(p, fd, f) == 0);
    CHECK((late = open(file, O_RDWR)) >= 0 && (after = fopen(file, "r+")) != NULL);
    CHECK(disagree(p, late, after) == 0);
    CHECK((pid = fork()) >= 0);
    if (pid == 0) {
        CHECK(disagree(p, late, after) == 0);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(pwrite(late, "grown", 5, 3 * PAGE + 10) == 5); /* past the end */
    CHECK(!memcmp((char *)p + 3 * PAGE + 10, "grown", 5));
    p[3 * PAGE + 14] = 'N';
    CHECK(pread(fd, (char[6]){0}, 5, 3 * PAGE + 10) == 5);
    CHECK(fsync(fd) == 0 && peer_byte(3 * PAGE + 14) == 'N');
}

static void both(void) { two_ways(NULL); }
static void both_summed(void) { two_ways("sum"); }

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } steps[] = {
        {"basic", basic}, {"parts", parts}, {"moves", moves}, {"protects", protects}, {"joins", joins}, {"many", many},
        {"forks", forks}, {"forks_with_an_allocator", forks_with_an_allocator}, {"forks_after_removal", forks_after_removal},
        {"tail", tail}, {"closes", closes}, {"threads", threads}, {"signals", signals}, {"both", both}, {"both_summed", both_summed},
    };
    CHECK(argc == 4);
    self = argv[0];
    file = argv[2];
    peer = argv[3];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (!strcmp(argv[1], steps[i].name)) {
            steps[i].run();
            return 0;
        }
    return 2;
}
