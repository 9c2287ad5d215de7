/* The preloaded library: what its files share. dsmfs run(1) puts it into programs; see shim.c. */
#ifndef DSMFS_SHIM_H
#define DSMFS_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

/* client.c: includes dsmfs.h, holds its lists. Those that return int return 0 or -errno, and none changes errno for the caller. */

/* Whether anything is attached at all; cheap, without a lock. */
int shim_active(void);

/* The number of a descriptor that is the library's own, or -1; for i from 0 to SHIM_GUARDED - 1. */
enum { SHIM_GUARDED = 8 };
int shim_guarded(int i);
int shim_move_guarded(int fd);

/* mmap: maps a shared mapping of a dsmfs file by attaching, or says why not with a result below 0: -ENODEV for no dsmfs file. */
int shim_map(void *addr, size_t len, int prot, int flags, int fd, off_t off, void **out);

/* Those that the kernel's calls need: each does the call, too, and returns its result, -errno for an error. */
static inline int shim_failed(long result) { return result < 0 && result >= -4095; }
long shim_unmap(void *addr, size_t len);
long shim_map_over(void *addr, size_t len, int prot, int flags, int fd, off_t off);
long shim_protect(void *addr, size_t len, int prot);
long shim_remap(void *old, size_t old_len, size_t new_len, int flags, void *at);

/* Before fork: whether a child is to have [addr, addr+len). Returns 1 if all of it is ours, and so needs no call of the kernel. */
int shim_set_fork(void *addr, size_t len, int fork);

/* Whether [addr, addr+len) shows an area of which pages come when they are touched: a hole in its memory is a page that is not here. */
int shim_keeps(void *addr, size_t len);

/* Has read and write of a descriptor that was just opened see what the program stores to its mappings, if it has the file attached. */
void shim_opened(int fd);

/* Publishes the areas that [addr, addr+len) shows, or those of the inode. */
int shim_sync_range(void *addr, size_t len);
int shim_sync_inode(dev_t dev, ino_t ino);

#endif
