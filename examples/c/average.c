/* Adds to one number from many machines at once, and prints it.

       cc -O2 -Iinclude -o average examples/c/average.c -pthread
       ./average /mnt/dsm/sum 1000        # on any number of nodes, at the same time
       ./average /mnt/dsm/sum 0           # what it is now

   The area is made by whoever comes first. Its merge rule says that what is added on different nodes adds up; with the
   rule "last" one addition would overwrite the other. */
#define DSMFS_IMPLEMENTATION
#include "dsmfs.h"

static int failed(const char *what)
{
    fprintf(stderr, "average: %s: %s\n", what, dsmfs_error());
    return 1;
}

int main(int argc, char **argv)
{
    dsmfs *area;
    int64_t *sum, version;
    long times;
    if (argc != 3 || (times = strtol(argv[2], NULL, 10)) < 0) {
        fprintf(stderr, "usage: average FILE TIMES\n");
        return 2;
    }
    if (dsmfs_create(NULL, argv[1], sizeof *sum, 0644, 0, "merge sum\ndtype i64\n") < 0)
        return failed(argv[1]);
    if (dsmfs_attach(NULL, argv[1], DSMFS_WRITE, &area) < 0)
        return failed(argv[1]);
    sum = dsmfs_data(area);
    for (long i = 0; i < times; i++) {
        *sum += 1; /* a plain store: nothing is sent */
        if (i % 100 == 99 && dsmfs_publish(area) < 0)
            return failed("publish");
    }
    if ((version = dsmfs_sync(area)) < 0) /* ours is with the others, and theirs is here */
        return failed("sync");
    printf("added %ld; the sum is %lld at version %lld\n", times, (long long)*sum, (long long)version);
    return dsmfs_detach(area) < 0 ? failed("detach") : 0;
}
