/* Tests of dsmfs.h with an area of which pages come when they are touched: 8-byte words, each its own number, at least 64 pages.
   Usage: demand served SOCKET PATH, or demand fails SOCKET PATH, which talks with the test: it prints "ready" when pages are to come no more,
   "failed" when they are to come again, and each time reads a line; or demand gone SOCKET PATH, which prints "ready" when the daemon is to end. */
#define DSMFS_IMPLEMENTATION
#include "../dsmfs.h"

#include <setjmp.h>
#include <sys/wait.h>

static void fail(int line, const char *what)
{
    fprintf(stderr, "demand.c:%d: %s: \"%s\"\n", line, what, dsmfs_error());
    _exit(1);
}
#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 4 };

static sigjmp_buf out;
static char *volatile fault_at;

static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    fault_at = info->si_addr;
    siglongjmp(out, sig);
}

/* Reads a word; 0 if it does not come. */
static int load(volatile uint64_t *p, uint64_t *value)
{
    if (sigsetjmp(out, 1))
        return 0;
    *value = *p;
    return 1;
}

static void tell(const char *what)
{
    char line[16];
    printf("%s\n", what);
    CHECK(fflush(stdout) == 0 && fgets(line, sizeof line, stdin));
}

static uint64_t *words, count;

static void *sum(void *arg)
{
    uint64_t lo = (uint64_t)(long)arg * (count / THREADS), hi = lo + count / THREADS;
    for (uint64_t i = lo; i < hi; i++)
        CHECK(words[i] == i);
    return NULL;
}

static int ends(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void served(const char *socket, const char *path)
{
    dsmfs *r, *w;
    uint64_t *x, n;
    pthread_t t[THREADS];
    pid_t pid;
    CHECK(dsmfs_attach(socket, path, DSMFS_READ, &r) == 0);
    words = dsmfs_data(r);
    count = dsmfs_size(r) / 8;
    CHECK(count >= 64 * WORDS && words[count / 2] == count / 2); /* one that reads only is served, too */
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, sum, (void *)i) == 0);
    CHECK(dsmfs_attach(socket, path, DSMFS_WRITE, &w) == 0);
    x = dsmfs_data(w);
    CHECK(x[count - 1] == count - 1);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    if ((pid = fork()) == 0) {
        CHECK(words[3 * WORDS] == 3 * WORDS && x[count - 2] == count - 2);
        x[7] = 70;
        CHECK(dsmfs_publish(w) >= 0);
        _exit(5);
    }
    CHECK(ends(pid) == 5 && words[7] == 70);
    x[7] = 7;
    CHECK(dsmfs_resize(w, 8 * count + 20 * PAGE) == 0);
    x = dsmfs_data(w);
    n = dsmfs_size(w) / 8;
    CHECK(n == count + 20 * WORDS && x[count] == 0 && x[n - 1] == 0 && x[7] == 7 && x[count - 3] == count - 3);
    x[n - 1] = 9;
    CHECK(dsmfs_publish(w) >= 0 && dsmfs_resize(w, 8 * count) == 0);
    x = dsmfs_data(w);
    CHECK(x[7] == 7 && dsmfs_resize(w, 8 * count + PAGE) == 0);
    x = dsmfs_data(w);
    CHECK(x[count] == 0 && dsmfs_resize(w, 8 * count) == 0);
    CHECK(dsmfs_detach(w) == 0 && words[9] == 9 && dsmfs_detach(r) == 0);
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

/* Touches a word in each of 64 places, until as many as most do not come; returns how many do not, and of the last of them the index. */
static int absent(int most, uint64_t *index)
{
    int lacking = 0;
    for (int i = 0; i < 64 && lacking < most; i++) {
        uint64_t at = count / 64 * (uint64_t)i + 1, value;
        if (load(&words[at], &value)) {
            CHECK(value == at);
            continue;
        }
        CHECK((uint64_t *)fault_at == &words[at]);
        *index = at;
        lacking++;
    }
    return lacking;
}

static void fails(const char *socket, const char *path)
{
    dsmfs *r;
    uint64_t at = 0, value = 0;
    char *page;
    CHECK(dsmfs_attach(socket, path, DSMFS_READ, &r) == 0);
    words = dsmfs_data(r);
    count = dsmfs_size(r) / 8;
    CHECK(words[0] == 0);
    tell("ready");
    CHECK(absent(1, &at) == 1);
    CHECK(!load(&words[at], &value)); /* at once, for it is marked */
    CHECK(load(&words[0], &value) && value == 0);
    page = (char *)((uintptr_t)&words[at] & ~(uintptr_t)(PAGE - 1));
    CHECK(syscall(SYS_write, 2, page, 1) < 0 && errno == EFAULT);
    tell("failed");
    CHECK(!load(&words[at], &value));
    for (int n = 0; n < 60; n++) { /* the home may be busy for a while */
        CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
        if (load(&words[at], &value))
            break;
    }
    CHECK(value == at && dsmfs_detach(r) == 0);
}

static void gone(const char *socket, const char *path)
{
    dsmfs *r, *w;
    uint64_t at = 0;
    CHECK(dsmfs_attach(socket, path, DSMFS_READ, &r) == 0 && dsmfs_attach(socket, path, DSMFS_WRITE, &w) == 0);
    words = dsmfs_data(r);
    count = dsmfs_size(r) / 8;
    CHECK(words[0] == 0);
    tell("ready");
    CHECK(absent(64, &at) > 0);
    words = dsmfs_data(w);
    CHECK(absent(64, &at) > 0 && words[0] == 0);
    CHECK(dsmfs_publish(w) == -ENOTCONN && dsmfs_detach(w) == 0 && dsmfs_detach(r) == 0);
}

int main(int argc, char **argv)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = on_bus;
    act.sa_flags = SA_SIGINFO;
    if (argc != 4 || sigaction(SIGBUS, &act, NULL) < 0)
        return 2;
    if (!strcmp(argv[1], "served"))
        served(argv[2], argv[3]);
    else if (!strcmp(argv[1], "fails"))
        fails(argv[2], argv[3]);
    else if (!strcmp(argv[1], "gone"))
        gone(argv[2], argv[3]);
    else
        return 2;
    return 0;
}
