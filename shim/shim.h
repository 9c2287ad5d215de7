/* The preloaded library: what its files share. dsmfs run(1) puts it into programs; see shim.c. */
#ifndef DSMFS_SHIM_H
#define DSMFS_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

/* shown.c: whether [lo, hi) may show something of ours, asked without a lock. All of the list is said anew whenever it shows more or less, with
   the lock held: begin with its length, which returns 0 if there is no memory for it, then add each range, then end. */
int shim_shows(const char *lo, const char *hi);
int shim_show_begin(size_t n);
void shim_show_add(const char *lo, const char *hi);
void shim_show_end(void);

/* client.c: includes dsmfs.h and owns its lists. Functions that return int return 0 or -errno, and none changes errno for the caller. */

/* Whether anything is attached at all; cheap, without a lock. */
int shim_active(void);

/* The number of a descriptor that is the library's own, or -1; for i from 0 to SHIM_GUARDED - 1. */
enum { SHIM_GUARDED = 8 };
int shim_guarded(int i);
int shim_move_guarded(int fd);

/* mmap: makes a shared mapping of a dsmfs file by attaching. A result below 0 says why that is not possible: -ENODEV for a file that is not of dsmfs. */
int shim_map(void *addr, size_t len, int prot, int flags, int fd, off_t off, void **out);

/* The following replace calls of the kernel: each also makes the call, and returns its result, -errno for an error. */
static inline int shim_failed(long result) { return result < 0 && result >= -4095; }
long shim_unmap(void *addr, size_t len);
long shim_map_over(void *addr, size_t len, int prot, int flags, int fd, off_t off);
long shim_protect(void *addr, size_t len, int prot);
long shim_remap(void *old, size_t old_len, size_t new_len, int flags, void *at);

/* Before fork: whether a child should get [addr, addr+len). Returns 1 if all of it is ours, so that the kernel need not be
   called, 0 if not, or -errno. */
int shim_set_fork(void *addr, size_t len, int fork);

/* Whether [addr, addr+len) shows an area on demand: a hole in its memory is a page that is not here. */
int shim_keeps(void *addr, size_t len);

/* If the program has the file attached: makes read and write on a descriptor that was just opened see what the program stores to its mappings. */
void shim_opened(int fd);

/* Publishes the areas that [addr, addr+len) shows, or those of the inode. */
int shim_sync_range(void *addr, size_t len);
int shim_sync_inode(dev_t dev, ino_t ino);

#endif
