/* bench.h: the verbs of the benchmark client and what they share. */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>

/* now is CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a machine. */
int64_t now(void);
/* die prints what failed, with errno, and ends the process. */
void die(const char *what) __attribute__((noreturn));
/* map_file maps size bytes of a file for reading and writing, and grows the file if it is smaller. */
void *map_file(const char *path, size_t size);

/* map_to_read maps size bytes of a file that has them for reading only. */
const void *map_to_read(const char *path, size_t size);
/* median sorts v. */
int64_t median(int64_t *v, size_t n);

void tcp_server(char **a);
void tcp_client(char **a);
void write_fsync(char **a);
void store_msync(char **a);
void latency_writer(char **a);
void latency_reader(char **a);
void bulk_writer(char **a);
void bulk_reader(char **a);
void repeat_stores(char **a);
void sweep(char **a);
void hold_areas(char **a);
void hold_file(char **a);
void create_files(char **a);
void set_modes(char **a);
void page_latency(char **a);
void lock_unlock(char **a);
void lock_first(char **a);
void lock_turns(char **a);
void lock_keep(char **a);
void lock_opened(char **a);
void barriers(char **a);

#endif
