/* Which addresses show something of ours, to be asked without the lock.

   A fork takes the lock before it calls the handlers of the program's allocator, which were registered earlier. They lock the allocator and
   may unmap memory, and other threads unmap memory with the allocator locked. If such a call took our lock, the fork would wait for itself, or
   for a thread that waits for the fork. So a call about memory that is not ours goes to the kernel without it.

   There are two tables: one is read while the other is filled. Who was too slow reads again. Tables are never unmapped, since somebody may
   still read them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shim.h"

#include <sys/mman.h>
#include <unistd.h>

struct span { const char *lo, *hi; };
struct table { size_t n; struct span at[]; };

static struct table *tables[2];
static size_t room[2]; /* of each, in spans */
static unsigned turn;  /* its lowest bit says which table is read */
static int unknown;    /* there was no memory for a table: anything may be ours */

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define STORE(x, value) __atomic_store_n(&(x), value, __ATOMIC_RELAXED)

int shim_shows(const char *lo, const char *hi)
{
    for (;;) {
        unsigned now = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
        struct table *t = __atomic_load_n(&tables[now % 2], __ATOMIC_ACQUIRE);
        size_t n = t ? LOAD(t->n) : 0;
        int found = 0;
        for (size_t i = 0; i < n && !found; i++)
            found = lo < LOAD(t->at[i].hi) && LOAD(t->at[i].lo) < hi;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (LOAD(turn) == now)
            return found || (LOAD(unknown) && lo < hi);
    }
}

int shim_show_begin(size_t n)
{
    unsigned next = (turn + 1) % 2;
    __atomic_thread_fence(__ATOMIC_RELEASE); /* who reads what is stored from here on sees that the turn has changed */
    if (n > room[next] || !tables[next]) {
        size_t size = (sizeof(struct table) + 2 * n * sizeof(struct span) + 4095) & ~(size_t)4095;
        struct table *t = (struct table *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (t == MAP_FAILED) {
            STORE(unknown, 1);
            return 0;
        }
        room[next] = (size - sizeof(struct table)) / sizeof(struct span);
        __atomic_store_n(&tables[next], t, __ATOMIC_RELEASE);
    }
    STORE(tables[next]->n, 0);
    return 1;
}

void shim_show_add(const char *lo, const char *hi)
{
    struct table *t = tables[(turn + 1) % 2];
    STORE(t->at[t->n].lo, lo);
    STORE(t->at[t->n].hi, hi);
    STORE(t->n, t->n + 1);
}

void shim_show_end(void)
{
    __atomic_store_n(&turn, turn + 1, __ATOMIC_RELEASE);
    STORE(unknown, 0);
}
