/* Tests of dsmfs.h. Usage: api wire SOCKET, with a daemon that is none (see run_wire_test.go), or
   api real FILE PEER, where PEER is the same file in the mount of another node, or api socket SOCKET. */
#define DSMFS_IMPLEMENTATION
#include "../dsmfs.h"

#include <sys/resource.h>
#include <sys/wait.h>

static void fail(int line, const char *what)
{
    fprintf(stderr, "api.c:%d: %s: \"%s\"\n", line, what, dsmfs_error());
    _exit(1);
}
#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

enum { THREADS = 8 };

static dsmfs *attached(const char *socket, const char *path, int access)
{
    dsmfs *a;
    if (dsmfs_attach(socket, path, access, &a) < 0)
        fail(__LINE__, path);
    return a;
}

static void refused(const char *socket, const char *path, int access, int err, const char *text)
{
    dsmfs *a = (dsmfs *)&a;
    int got = dsmfs_attach(socket, path, access, &a);
    if (got != err || a || !strstr(dsmfs_error(), text)) {
        fprintf(stderr, "attach %s: %d, want %d and \"%s\"\n", path, got, err, text);
        fail(__LINE__, path);
    }
}

static dsmfs *area;

/* WAIT of version i: the daemon answers when all have asked, in another order. */
static void *wait_one(void *arg)
{
    long i = (long)arg;
    CHECK(dsmfs_wait(area, 1000 + i, 60000) == 1000 + i);
    return NULL;
}

/* WAIT of a version at which the daemon hangs up. */
static void *wait_lost(void *arg)
{
    CHECK(dsmfs_wait(area, 13, 0) == -ENOTCONN && strstr(dsmfs_error(), "ended the connection"));
    return arg;
}

static void run_threads(void *(*f)(void *))
{
    pthread_t t[THREADS];
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, f, (void *)i) == 0);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
}

static void wire(const char *socket)
{
    char text[5000];
    refused(socket, "/denied", DSMFS_WRITE, -EACCES, "mode 0600 does not let you");
    refused(socket, "/nothing", DSMFS_READ, -EPROTO, "sent no memory");
    refused(socket, "/garbage", DSMFS_READ, -ENOTCONN, "ended the connection");
    refused(socket, "/untracked", DSMFS_WRITE, -EINVAL, "no userfaultfd of yours");
    refused(socket, "w", DSMFS_READ, -EINVAL, "from the root");
    refused("/nowhere/attach", "/w", DSMFS_READ, -ENOENT, "/nowhere/attach");
    refused(NULL, "/proc/self/status", DSMFS_READ, -ENODEV, "not in a dsmfs mount");
    refused(NULL, "/no/such/file", DSMFS_READ, -ENOENT, "No such file");

    area = attached(socket, "/w", DSMFS_WRITE);
    CHECK(dsmfs_size(area) == 3 * 4096 && !strcmp(dsmfs_data(area), "as the daemon has it"));
    run_threads(wait_one);
    CHECK(dsmfs_stats(area, text, sizeof text) == 4096 && strlen(text) == 4096 && !strncmp(text, "version 42\n", 11));
    CHECK(dsmfs_stats(area, text, 8) == 7 && !strcmp(text, "version"));
    CHECK(dsmfs_version(area) == 42);
    CHECK(dsmfs_acquire(area) == -ETIMEDOUT && strstr(dsmfs_error(), "the home does not answer"));
    CHECK(dsmfs_wait(area, 7, 20) == -ETIMEDOUT);
    run_threads(wait_lost);
    CHECK(dsmfs_publish(area) == -ENOTCONN && !strcmp(dsmfs_data(area), "as the daemon has it"));
    CHECK(dsmfs_detach(area) == 0);

    area = attached(socket, "/w", DSMFS_READ); /* by a new connection */
    CHECK(dsmfs_sync(area) == 5);
    CHECK(close(dsmfs__links->fd) == 0); /* by a program that closes everything */
    CHECK(open("/dev/null", O_RDONLY) >= 0);
    CHECK(dsmfs_sync(area) == -ENOTCONN);
    CHECK(dsmfs_detach(area) == 0 && !dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

/* The value of a byte for who opens the file of the other node now. */
static int peer_byte(const char *peer, off_t off)
{
    unsigned char c = 0;
    int fd = open(peer, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, &c, 1, off) == 1);
    close(fd);
    return c;
}

static int ends(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void *publish_often(void *arg)
{
    long i = (long)arg;
    char *p = dsmfs_data(area);
    for (int n = 1; n <= 50; n++) {
        p[4096 * (i + 1)] = (char)n;
        CHECK(dsmfs_publish(area) >= 0);
    }
    return NULL;
}

static void *wait_newer(void *arg)
{
    *(int64_t *)arg = dsmfs_wait(area, *(int64_t *)arg, 30000);
    return NULL;
}

static void real(const char *file, const char *peer)
{
    const size_t size = 4096 * (THREADS + 1);
    char *p, *q, text[4096];
    dsmfs *reader;
    int64_t v, newer;
    pthread_t t;
    pid_t pid;
    struct rlimit none = {0, 0};
    int status;
    CHECK(dsmfs_create(NULL, file, size, 0640, DSMFS_EXCL, "merge sum\ndtype i32\n") == 0);
    CHECK(dsmfs_create(NULL, file, size, 0640, DSMFS_EXCL, NULL) == -EEXIST);
    CHECK(dsmfs_create(NULL, peer, 0, 0640, 0, "merge nonsense\n") >= 0); /* it is there */
    area = attached(NULL, file, DSMFS_WRITE);
    reader = attached(NULL, file, DSMFS_READ);
    p = dsmfs_data(area);
    q = dsmfs_data(reader);
    CHECK(dsmfs_size(area) == size && p != q && q);
    p[0] = 1;
    CHECK(q[0] == 1 && (v = dsmfs_publish(area)) > 0 && peer_byte(peer, 0) == 1);
    CHECK(dsmfs_version(area) >= v && dsmfs_wait(area, v, 1000) >= v);
    CHECK(dsmfs_stats(area, text, sizeof text) > 0 && strstr(text, "version "));

    newer = v + 1;
    CHECK(pthread_create(&t, NULL, wait_newer, &newer) == 0);
    run_threads(publish_often);
    CHECK(pthread_join(t, NULL) == 0 && newer > v);
    for (int i = 1; i <= THREADS; i++)
        CHECK(peer_byte(peer, 4096 * i) == 50);

    if ((pid = fork()) == 0) {
        CHECK(p[0] == 1 && q[0] == 1);
        p[0] = 2;
        CHECK(dsmfs_publish(area) > 0 && peer_byte(peer, 0) == 2);
        CHECK(dsmfs_detach(reader) == 0 && dsmfs_detach(area) == 0);
        _exit(0);
    }
    CHECK(ends(pid) == 0 && p[0] == 1); /* a program that adds to a sum has a copy of its own until it syncs */
    CHECK(dsmfs_sync(area) > 0 && p[0] == 2);
    p[1] = 3;
    CHECK(dsmfs_sync(area) > 0 && peer_byte(peer, 1) == 3);

    CHECK(dsmfs_resize(reader, 8192) == -EACCES);
    CHECK(dsmfs_resize(area, 2 * size) == 0 && dsmfs_size(area) == 2 * size);
    p = dsmfs_data(area);
    p[2 * size - 1] = 4;
    CHECK(dsmfs_publish(area) > 0 && peer_byte(peer, 2 * (off_t)size - 1) == 4);
    CHECK(dsmfs_resize(area, 0) == 0 && dsmfs_size(area) == 0 && !dsmfs_data(area));
    CHECK(dsmfs_resize(area, 4096) == 0);
    p = dsmfs_data(area);
    CHECK(p[0] == 0);

    CHECK(unlink(file) == 0);
    if ((pid = fork()) == 0) {
        setrlimit(RLIMIT_CORE, &none);
        if (dsmfs_publish(area) != -ENOTCONN) { /* by its number */
            CHECK(*(volatile char *)dsmfs_data(area) == 0);
            _exit(0);
        }
        signal(SIGSEGV, SIG_DFL); /* a sanitizer has a handler */
        _exit(*(volatile char *)dsmfs_data(area));
    }
    CHECK((status = ends(pid)) == 1000 + SIGSEGV || status == 0);
    p[0] = 5;
    CHECK(dsmfs_detach(area) == 0 && dsmfs_detach(reader) == 0);
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

/* What works without any mount. */
static void by_socket(const char *socket)
{
    CHECK(dsmfs_create(socket, "/s", 4096, 0600, 0, NULL) == 0);
    area = attached(socket, "/s", DSMFS_WRITE);
    *(char *)dsmfs_data(area) = 1;
    CHECK(dsmfs_publish(area) > 0 && dsmfs_detach(area) == 0);
    CHECK(setenv("DSMFS_ATTACH", socket, 1) == 0);
    area = attached(NULL, "/s", DSMFS_READ);
    CHECK(*(char *)dsmfs_data(area) == 1 && dsmfs_detach(area) == 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "wire"))
        wire(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "real"))
        real(argv[2], argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "socket"))
        by_socket(argv[2]);
    else
        return 2;
    return 0;
}
