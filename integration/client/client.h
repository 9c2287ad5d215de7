/* client.h: what the two halves of the test client share. */
#ifndef CLIENT_H
#define CLIENT_H

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

#define MAX_ARGS 8

/* A command takes exactly args words and prints exactly one line. */
struct command {
	const char *name;
	int args;
	void (*run)(char **args);
};

extern const struct command memory_commands[];

/* A fault in a thread whose fault_armed is set jumps to its fault_return. */
extern __thread sigjmp_buf fault_return;
extern __thread volatile sig_atomic_t fault_armed;

void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
void answer_errno(void);
void answer_bytes(const unsigned char *p, size_t n);
/* bytes_of decodes hexadecimal digits into memory that the caller frees. */
unsigned char *bytes_of(const char *hex, size_t *n);

#endif
