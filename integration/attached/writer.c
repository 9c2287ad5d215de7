/* Attaches an area, stores into every page but the last, says so, and goes on storing into the last page until it is
   killed. With a third argument it ends that way itself: exit, exec, munmap (and then goes on), fork. */
#define DSMFS_IMPLEMENTATION
#include "dsmfs.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096 };

static int fail(const char *what)
{
    fprintf(stderr, "writer: %s: %s\n", what, dsmfs_error());
    return 1;
}

int main(int argc, char **argv)
{
    dsmfs *area;
    volatile uint64_t *w;
    size_t pages;
    const char *how = argc > 2 ? argv[2] : "";
    if (argc < 2 || dsmfs_attach(NULL, argv[1], DSMFS_WRITE, &area) < 0)
        return fail("attach");
    w = dsmfs_data(area);
    pages = dsmfs_size(area) / PAGE;
    for (size_t p = 0; p + 1 < pages; p++)
        w[p * PAGE / 8] = p + 1;
    if (strcmp(how, "fork") == 0) { /* the child is tracked like its parent, which stores nothing more */
        pid_t child = fork();
        if (child == 0) {
            for (size_t p = 0; p + 1 < pages; p++)
                w[p * PAGE / 8 + 1] = 100 + p;
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    puts("stored");
    fflush(stdout);
    if (strcmp(how, "exit") == 0)
        return 0;
    if (strcmp(how, "exec") == 0)
        execlp("sleep", "sleep", "600", (char *)NULL);
    if (strcmp(how, "munmap") == 0) {
        munmap((void *)w, pages * PAGE); /* behind the library's back */
        for (;;)
            pause();
    }
    for (uint64_t i = 1;; i++)
        w[(pages - 1) * PAGE / 8 + i % (PAGE / 8)] = i;
}
