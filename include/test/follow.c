/* Tests of dsmfs.h with daemons that follow each other. Usage: follow STEP SOCKET. A step says words, one a line, and reads a line to go on: see
   pybind/tests/test_follow_c.py, which has the daemons. */
#define DSMFS_IMPLEMENTATION
#include "../dsmfs.h"

#include <sys/time.h>
#include <sys/wait.h>

static void fail(int line, const char *what)
{
    fprintf(stderr, "follow.c:%d: %s: \"%s\"\n", line, what, dsmfs_error());
    _exit(1);
}
#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void say(const char *word)
{
    char line[16];
    printf("%s\n", word);
    CHECK(fflush(stdout) == 0 && fgets(line, sizeof line, stdin));
}

static dsmfs *attached(const char *socket, int access)
{
    dsmfs *a;
    if (dsmfs_attach(socket, "/w", access, &a) < 0)
        fail(__LINE__, "attach");
    return a;
}

static void detached(dsmfs *a) { CHECK(dsmfs_detach(a) == 0 && !dsmfs__links && !dsmfs__areas && !dsmfs__ranges); }

/* Each request is the first after a daemon has ended. */
static void requests(const char *socket)
{
    dsmfs *a = attached(socket, DSMFS_WRITE), *b = attached(socket, DSMFS_READ);
    volatile char *p = dsmfs_data(a);
    char text[4096];
    int64_t v;
    for (int i = 0; i < 16; i++) {
        say("ready");
        p[i] = (char)(i + 1);
        switch (i % 8) {
        case 0: CHECK(dsmfs_publish(a) > 0); break;
        case 1: CHECK(dsmfs_acquire(b) > 0); break;
        case 2: CHECK(dsmfs_sync(a) > 0); break;
        case 3: CHECK(dsmfs_version(a) > 0); break;
        case 4: CHECK((v = dsmfs_version(b)) > 0 && dsmfs_wait(a, v, 0) == v); break;
        case 5: CHECK(dsmfs_stats(a, text, sizeof text) > 0 && !strncmp(text, "version ", 8)); break;
        case 6: CHECK(dsmfs_wait(b, 1, 60000) > 0); break;
        case 7: CHECK(dsmfs_resize(a, dsmfs_size(a) + 4096) == 0); p = dsmfs_data(a); break;
        }
        for (int j = 0; j <= i; j++)
            CHECK(p[j] == j + 1 && ((volatile char *)dsmfs_data(b))[j] == j + 1);
    }
    say("done");
    CHECK(dsmfs_detach(b) == 0);
    detached(a);
}

enum { THREADS = 8 };
static dsmfs *area;
static int stop;

/* Stores to a byte of the thread's own, and publishes. */
static void publish(long i)
{
    ((volatile char *)dsmfs_data(area))[64 * i]++;
    CHECK(dsmfs_publish(area) > 0);
}

static void *publishes(void *arg)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        publish((long)arg);
    return arg;
}

static void *waits(void *arg)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        int64_t v = dsmfs_version(area);
        CHECK(v > 0 && dsmfs_wait(area, v + 1, 0) > v);
    }
    return arg;
}

/* All threads go on while daemons are killed. */
static void threads(const char *socket)
{
    pthread_t t[THREADS];
    area = attached(socket, DSMFS_WRITE);
    publish(0);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, i % 2 ? publishes : waits, (void *)i) == 0);
    say("ready");
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 1; i < THREADS; i += 2)
        CHECK(pthread_join(t[i], NULL) == 0);
    publish(0); /* for those that wait */
    publish(0);
    for (int i = 0; i < THREADS; i += 2)
        CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(dsmfs_version(area) > 0 && !area->old); /* the last who looks frees the pages of daemons that have ended */
    detached(area);
}

/* A timeout ends a wait, and no RESUME. */
static void late(const char *socket)
{
    dsmfs *a = attached(socket, DSMFS_WRITE);
    CHECK(dsmfs_publish(a) > 0 && dsmfs_version(a) > 0);
    say("ready");
    for (int i = 0; i < 3; i++)
        CHECK(dsmfs_wait(a, INT64_MAX, 50) == -ETIMEDOUT && strstr(dsmfs_error(), "none has followed"));
    say("late");
    CHECK(dsmfs_publish(a) > 0);
    detached(a);
}

static int published;

static void on_alarm(int sig)
{
    (void)sig;
    if (dsmfs_publish(area) > 0)
        __atomic_add_fetch(&published, 1, __ATOMIC_RELAXED);
}

/* Whether there is a line to read, or no more will come. */
static int told(void)
{
    struct pollfd in = {0, POLLIN, 0};
    return poll(&in, 1, 0) > 0;
}

/* Signal handlers that make requests come in requests, and while no daemon serves. */
static void signals(const char *socket)
{
    struct itimerval often = {{0, 3000}, {0, 3000}}, never = {{0, 0}, {0, 0}};
    pthread_t t;
    area = attached(socket, DSMFS_WRITE);
    CHECK(dsmfs_publish(area) > 0);
    signal(SIGALRM, on_alarm);
    say("ready");
    CHECK(pthread_create(&t, NULL, publishes, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (!told()) {
        int before = __atomic_load_n(&published, __ATOMIC_RELAXED);
        while (__atomic_load_n(&published, __ATOMIC_RELAXED) == before)
            CHECK(dsmfs_sync(area) > 0);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(t, NULL) == 0);
    detached(area);
}

static void *publishes_once(void *arg)
{
    CHECK(dsmfs_publish(arg) > 0);
    return arg;
}

static int is_asked(const dsmfs *a)
{
    uint64_t old = dsmfs__lock();
    int asked = a->asked;
    dsmfs__unlock(old);
    return asked;
}

/* While a thread waits for a daemon others detach and fork. */
static void leaves(const char *socket)
{
    dsmfs *a = attached(socket, DSMFS_WRITE), *b = attached(socket, DSMFS_WRITE);
    pthread_t t;
    pid_t pid;
    int status;
    say("ready");
    CHECK(pthread_create(&t, NULL, publishes_once, a) == 0);
    while (!is_asked(a) || !is_asked(b))
        poll(NULL, 0, 1);
    *(char *)dsmfs_data(b) = 1;
    CHECK(dsmfs_detach(b) == 0 && *(char *)dsmfs_data(a) == 1);
    if ((pid = fork()) == 0) {
        CHECK(*(char *)dsmfs_data(a) == 1 && dsmfs_publish(a) > 0);
        detached(a);
        _exit(0);
    }
    say("left");
    CHECK(pthread_join(t, NULL) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(dsmfs_publish(a) > 0);
    say("goes on");
    CHECK(dsmfs_detach(a) == 0); /* while no daemon serves */
    CHECK(!dsmfs__links && !dsmfs__areas && !dsmfs__ranges);
}

/* The areas have ended, for the reason why. */
static void ends(const char *socket, const char *why)
{
    dsmfs *a = attached(socket, DSMFS_WRITE);
    volatile char *p = dsmfs_data(a);
    CHECK(dsmfs_publish(a) > 0 && dsmfs_version(a) > 0);
    say("ready");
    for (int i = 0; i < 2; i++) {
        CHECK(dsmfs_publish(a) == -ENOTCONN && strstr(dsmfs_error(), why));
        CHECK(dsmfs_version(a) == -ENOTCONN && dsmfs_wait(a, INT64_MAX, 0) == -ENOTCONN && dsmfs_resize(a, 4096) == -ENOTCONN);
    }
    *p = 5;
    CHECK(*p == 5 && dsmfs_data(a) == p);
    detached(a);
}

/* Requests that come while no daemon serves, from who has an area already, and a CREATE that has no answer. */
static void makes(const char *socket)
{
    dsmfs *a = attached(socket, DSMFS_WRITE), *b;
    say("ready");
    b = attached(socket, DSMFS_READ);
    CHECK(dsmfs_acquire(b) > 0 && dsmfs_detach(b) == 0);
    say("attached");
    CHECK(dsmfs_create(socket, "/new", 4096, 0600, 0, NULL) == 0);
    say("created");
    CHECK(dsmfs_create(socket, "/new", 4096, 0600, 0, NULL) == 0); /* the daemon ends when it is asked */
    say("created");
    CHECK(dsmfs_create(socket, "/own", 4096, 0600, DSMFS_EXCL, NULL) == 0); /* as does this one */
    say("created");
    CHECK(dsmfs_create(socket, "/whose", 4096, 0600, DSMFS_EXCL, NULL) == -ENOTCONN && strstr(dsmfs_error(), "somebody else's")); /* and this one, when it has done it */
    CHECK(dsmfs_create(socket, "/whose", 4096, 0600, DSMFS_EXCL, NULL) == -EEXIST);
    detached(a);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(const char *); } steps[] = {
        {"requests", requests}, {"threads", threads}, {"late", late}, {"signals", signals}, {"leaves", leaves}, {"makes", makes},
    };
    if (argc == 4 && !strcmp(argv[1], "ends")) {
        ends(argv[2], argv[3]);
        return 0;
    }
    for (size_t i = 0; argc == 3 && i < sizeof steps / sizeof *steps; i++)
        if (!strcmp(argv[1], steps[i].name)) {
            steps[i].run(argv[2]);
            return 0;
        }
    return 2;
}
