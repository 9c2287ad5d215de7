/* Tests of dsmfs.h in programs that may not do what it needs, or that lose their daemon. Usage: lost forbidden SOCKET, or lost wire SOCKET, with a daemon that
   is none (see run_wire_test.go), or lost real SOCKET, which prints "ready" when the daemon is to end, and then reads a line. */
#define DSMFS_IMPLEMENTATION
#define DSMFS_LOST(path, text) snprintf(told, sizeof told, "%s: %s", path, text)
static char told[600];
#include "../dsmfs.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void fail(int line, const char *what)
{
    fprintf(stderr, "lost.c:%d: %s: \"%s\"\n", line, what, dsmfs_error());
    _exit(1);
}
#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void check_refused(int line, const char *socket, const char *path, int err, const char *text)
{
    dsmfs *a = (dsmfs *)&a;
    int got = dsmfs_attach(socket, path, DSMFS_WRITE, &a);
    if (got != err || a || !strstr(dsmfs_error(), text) || dsmfs__links || dsmfs__areas || dsmfs__ranges) {
        fprintf(stderr, "attach %s: %d, want %d and \"%s\"\n", path, got, err, text);
        fail(line, path);
    }
}
#define REFUSED(socket, path, err, text) check_refused(__LINE__, socket, path, err, text)

/* Has a system call fail with EPERM in this process: every one, or those whose argument has none of the bits, or is the value. */
enum { ANY, WITHOUT, EQUAL };

static void forbid(uint32_t call, int argument, int how, uint32_t value)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)argument)),
        how == EQUAL ? (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1)
                     : (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, how == ANY ? 0 : value, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void attaches(const char *socket)
{
    dsmfs *a;
    CHECK(dsmfs_attach(socket, "/watched", DSMFS_WRITE, &a) == 0 && dsmfs_publish(a) >= 0 && dsmfs_detach(a) == 0);
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

/* Each way to a userfaultfd is taken when those before it are forbidden. */
static void forbidden(const char *socket)
{
    int dev;
    REFUSED(socket, "/forbidden", -EPERM, "you may not");
    attaches(socket);
    forbid(SYS_userfaultfd, 0, WITHOUT, 1 /* UFFD_USER_MODE_ONLY */);
    if ((dev = open("/dev/userfaultfd", O_RDWR)) >= 0) {
        close(dev);
        attaches(socket);
    }
    forbid(SYS_ioctl, 1, EQUAL, 0xAA00 /* USERFAULTFD_IOC_NEW */);
    attaches(socket);
    forbid(SYS_userfaultfd, 0, ANY, 0);
    REFUSED(socket, "/watched", -EPERM, "/watched: this process may have no userfaultfd: Operation not permitted");
}

/* Whether a program may load from there. */
static int readable(const void *p)
{
    int pipes[2], ok;
    CHECK(pipe(pipes) == 0);
    ok = write(pipes[1], p, 1) == 1;
    CHECK(ok || errno == EFAULT);
    close(pipes[0]);
    close(pipes[1]);
    return ok;
}

/* Forks. The child must have no area, and no memory, because of the reason; its parent has lost the daemon. */
static void loses_in_child(dsmfs *a, const char *why)
{
    const char *p = dsmfs_data(a);
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        char text[16];
        CHECK(strstr(told, why) && p == dsmfs_data(a) && !readable(p));
        CHECK(dsmfs_publish(a) == -ENOTCONN && strstr(dsmfs_error(), "attached again after fork"));
        CHECK(dsmfs_version(a) == -ENOTCONN && dsmfs_wait(a, 1, 0) == -ENOTCONN && dsmfs_stats(a, text, sizeof text) == -ENOTCONN);
        CHECK(dsmfs_resize(a, 4096) == -ENOTCONN && dsmfs_detach(a) == 0);
        CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(readable(p) && !*told);
}

/* After the end of the connection the memory is the process's own. */
static void is_lost(dsmfs *a)
{
    char *p = dsmfs_data(a), text[16], c = *p;
    size_t n = dsmfs_size(a);
    CHECK(dsmfs_publish(a) == -ENOTCONN && strstr(dsmfs_error(), "has ended: attach again"));
    CHECK(dsmfs_acquire(a) == -ENOTCONN && dsmfs_sync(a) == -ENOTCONN && dsmfs_wait(a, 1, 0) == -ENOTCONN);
    CHECK(dsmfs_version(a) == -ENOTCONN && dsmfs_stats(a, text, sizeof text) == -ENOTCONN);
    CHECK(dsmfs_resize(a, 4096) == -ENOTCONN && dsmfs_data(a) == p && dsmfs_size(a) == n);
    *p = 'm';
    CHECK(*p == 'm');
    *p = c;
}

static void wire(const char *socket)
{
    dsmfs *a, *b;
    REFUSED(socket, "/ends-at-track", -ENOTCONN, "ended the connection");
    CHECK(dsmfs_create(socket, "/ends-at-create", 0, 0600, 0, NULL) == -ENOTCONN && !dsmfs__links);

    CHECK(dsmfs_attach(socket, "/ends-at-resize", DSMFS_WRITE, &a) == 0 && dsmfs_resize(a, 4096) == -ENOTCONN);
    is_lost(a);
    loses_in_child(a, "/ends-at-resize: it is not yours any more");
    CHECK(dsmfs_attach(socket, "/w", DSMFS_WRITE, &b) == 0 && dsmfs_publish(b) >= 0); /* by a connection of its own */
    is_lost(a);
    CHECK(dsmfs_publish(b) >= 0 && dsmfs_detach(b) == 0 && dsmfs_detach(a) == 0);
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);

    /* The size is another already: there is nothing to map. */
    CHECK(dsmfs_attach(socket, "/ends-after-resize", DSMFS_WRITE, &a) == 0 && dsmfs_resize(a, 4096) == -ENOTCONN);
    CHECK(!dsmfs_data(a) && !dsmfs_size(a) && dsmfs_publish(a) == -ENOTCONN && dsmfs_detach(a) == 0);
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

static void *wait_lost(void *arg)
{
    dsmfs *a = arg;
    CHECK(dsmfs_wait(a, INT64_MAX, 0) == -ENOTCONN && strstr(dsmfs_error(), "has ended"));
    return NULL;
}

static void real(const char *socket)
{
    enum { WAITING = 3 };
    pthread_t t[WAITING];
    char line[16];
    dsmfs *a, *b;
    CHECK(dsmfs_create(socket, "/lost", 8192, 0600, 0, NULL) == 0 && dsmfs_attach(socket, "/lost", DSMFS_WRITE, &a) == 0);
    *(char *)dsmfs_data(a) = 'x';
    CHECK(dsmfs_publish(a) > 0 && dsmfs_version(a) > 0 && a->head);
    for (int i = 0; i < WAITING; i++)
        CHECK(pthread_create(&t[i], NULL, wait_lost, a) == 0);
    printf("ready\n");
    CHECK(fflush(stdout) == 0 && fgets(line, sizeof line, stdin));
    for (int i = 0; i < WAITING; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(dsmfs_attach(socket, "/lost", DSMFS_READ, &b) == -ECONNREFUSED && !b); /* by a new connection, although nobody has missed the old one */
    is_lost(a);
    CHECK(dsmfs_attach(socket, "/lost", DSMFS_READ, &b) == -ECONNREFUSED && !b);
    loses_in_child(a, "/lost: connect to ");
    CHECK(*(char *)dsmfs_data(a) == 'x' && dsmfs_detach(a) == 0 && !dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
    REFUSED(socket, "/lost", -ECONNREFUSED, "Connection refused");
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "forbidden"))
        forbidden(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "wire"))
        wire(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "real"))
        real(argv[2]);
    else
        return 2;
    return 0;
}
