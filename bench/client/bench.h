/* bench.h: the verbs of the benchmark client and what they share. */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

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

/* What a reader tells the writer, in a page of /dev/shm that is not part of the measurement: the round it has seen, and when. */
struct sighting {
	_Atomic uint32_t round;
	_Atomic int64_t when;
};

/* saw tells that the reader has just seen a round; seen waits for that, and returns when it was. */
void saw(struct sighting *s, uint32_t round);
int64_t seen(struct sighting *s, uint32_t round);
/* spin waits until a word has a value. It yields now and then, because on a machine with two cores the daemons need one. */
void spin(volatile uint32_t *p, uint32_t want);

/* send_all sends size bytes; receive_all receives as many, and returns 0 at the end of the connection. */
void send_all(int fd, const void *p, size_t size);
int receive_all(int fd, void *p, size_t size);
/* answer binds a socket, prints "ready" when it listens, and returns the first connection. */
int answer(int fd, const struct sockaddr *at, socklen_t size);
/* tcp_answer is answer on a TCP port; tcp_dial connects to one. */
int tcp_answer(const char *port);
int tcp_dial(const char *host, const char *port);

void tcp_server(char **a);
void tcp_client(char **a);
void tcp_sink(char **a);
void tcp_source(char **a);
void copy_twice(char **a);
void write_fsync(char **a);
void store_msync(char **a);
void latency_writer(char **a);
void latency_reader(char **a);
void sum_home(char **a);
void sum_member(char **a);
void read_reader(char **a);
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
void attached_reader(char **a);
void attached_writer(char **a);
void hop_end(char **a);
void hop_forward(char **a);
void hop_relay(char **a);
void hop_reader(char **a);
void hop_writer(char **a);
void floor_daemon(char **a);
void floor_end(char **a);
void floor_writer(char **a);
void floor_reader(char **a);
void floor_publisher(char **a);
void floor_versions(char **a);
void floor_mount(char **a);
void fault_home(char **a);
void fault_daemon(char **a);
void fault_program(char **a);
void sum_daemon(char **a);
void sum_program(char **a);
void factor_attached(char **a);
void factor_shared(char **a);

#endif
