/*
 * client is the program that the tests run on a mount: it does what one line on
 * its standard input asks and answers with one line, "ok ..." or "err NAME".
 *
 * The tests drive it instead of touching a mount themselves, because a process
 * that maps a file of a mount whose daemon hangs cannot be killed, and because
 * a fault there is a signal: here SIGBUS becomes the answer "err SIGBUS".
 *
 * Words are separated by single spaces, so paths must hold none. Numbers are
 * decimal, bytes are hexadecimal, "-" is the empty byte string. The commands
 * are the table at the end; memory.c has those that touch mapped memory.
 */
#define _GNU_SOURCE
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

__thread sigjmp_buf fault_return;
__thread volatile sig_atomic_t fault_armed;

static void on_fault(int sig)
{
	if (fault_armed)
		siglongjmp(fault_return, sig);
	signal(sig, SIG_DFL);
	raise(sig);
}

void answer(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void answer_errno(void)
{
	const char *name = strerrorname_np(errno);
	answer("err %s", name ? name : "UNKNOWN");
}

void answer_bytes(const unsigned char *p, size_t n)
{
	fputs("ok ", stdout);
	if (n == 0)
		putchar('-');
	for (size_t i = 0; i < n; i++)
		printf("%02x", p[i]);
	putchar('\n');
	fflush(stdout);
}

unsigned char *bytes_of(const char *hex, size_t *n)
{
	size_t len = strcmp(hex, "-") ? strlen(hex) / 2 : 0;
	unsigned char *p = malloc(len + 1);
	for (size_t i = 0; i < len; i++) {
		unsigned v = 0;
		sscanf(hex + 2 * i, "%2x", &v);
		p[i] = (unsigned char)v;
	}
	*n = len;
	return p;
}

/* done answers ok or the errno of a system call that returned r. */
static void done(int r)
{
	if (r < 0)
		answer_errno();
	else
		answer("ok");
}

static void answer_stat(int r, const struct stat *st)
{
	if (r < 0)
		answer_errno();
	else
		answer("ok %lld %o %llu %lld %llu %u %u %lld", (long long)st->st_size, st->st_mode, (unsigned long long)st->st_nlink,
		       (long long)st->st_blocks, (unsigned long long)st->st_ino, st->st_uid, st->st_gid, (long long)st->st_mtime);
}

static int open_flags(const char *words)
{
	static const struct { const char *word; int flag; } table[] = {
		{"r", O_RDONLY}, {"w", O_WRONLY}, {"rw", O_RDWR}, {"creat", O_CREAT},
		{"excl", O_EXCL}, {"trunc", O_TRUNC}, {"append", O_APPEND},
	};
	int flags = O_CLOEXEC;
	char *copy = strdup(words), *save = NULL;
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save))
		for (size_t i = 0; i < sizeof table / sizeof *table; i++)
			if (!strcmp(w, table[i].word))
				flags |= table[i].flag;
	free(copy);
	return flags;
}

static void cmd_open(char **a)
{
	int fd = open(a[0], open_flags(a[1]), 0644);
	if (fd < 0)
		answer_errno();
	else
		answer("ok %d", fd);
}

static void cmd_close(char **a) { done(close(atoi(a[0]))); }
static void cmd_fsync(char **a) { done(fsync(atoi(a[0]))); }
static void cmd_ftruncate(char **a) { done(ftruncate(atoi(a[0]), atoll(a[1]))); }
static void cmd_truncate(char **a) { done(truncate(a[0], atoll(a[1]))); }
static void cmd_punch(char **a) { done(fallocate(atoi(a[0]), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, atoll(a[1]), atoll(a[2]))); }

static void cmd_seek(char **a)
{
	off_t at = lseek(atoi(a[0]), atoll(a[1]), strcmp(a[2], "hole") ? SEEK_DATA : SEEK_HOLE);
	if (at < 0)
		answer_errno();
	else
		answer("ok %" PRId64, (int64_t)at);
}

static void cmd_fallocate(char **a) { done(posix_fallocate(atoi(a[0]), atoll(a[1]), atoll(a[2])) ? (errno = ENOSPC, -1) : 0); }
static void cmd_rename(char **a) { done(rename(a[0], a[1])); }
static void cmd_unlink(char **a) { done(unlink(a[0])); }
static void cmd_mkdir(char **a) { done(mkdir(a[0], 0755)); }
static void cmd_rmdir(char **a) { done(rmdir(a[0])); }
static void cmd_link(char **a) { done(link(a[0], a[1])); }
static void cmd_mkfifo(char **a) { done(mkfifo(a[0], 0644)); }
static void cmd_symlink(char **a) { done(symlink(a[0], a[1])); }
static void cmd_chmod(char **a) { done(chmod(a[0], (mode_t)strtol(a[1], NULL, 8))); }
static void cmd_chown(char **a) { done(chown(a[0], (uid_t)atoi(a[1]), (gid_t)atoi(a[2]))); }
static void cmd_setxattr(char **a) { done(setxattr(a[0], a[1], a[2], strlen(a[2]), 0)); }
static void cmd_removexattr(char **a) { done(removexattr(a[0], a[1])); }

static void cmd_utimens(char **a)
{
	struct timespec t[2] = {{.tv_sec = atoll(a[1])}, {.tv_sec = atoll(a[1])}};
	done(utimensat(AT_FDCWD, a[0], t, 0));
}

static void cmd_getxattr(char **a)
{
	unsigned char buf[4096];
	ssize_t n = getxattr(a[0], a[1], buf, sizeof buf);
	if (n < 0)
		answer_errno();
	else
		answer_bytes(buf, (size_t)n);
}

static void cmd_listxattr(char **a)
{
	char buf[4096];
	ssize_t n = listxattr(a[0], buf, sizeof buf);
	if (n < 0) {
		answer_errno();
		return;
	}
	for (ssize_t i = 0; i < n; i++)
		if (!buf[i])
			buf[i] = ' ';
	answer("ok %.*s", (int)n, buf);
}

static void cmd_readlink(char **a)
{
	char buf[4096];
	ssize_t n = readlink(a[0], buf, sizeof buf);
	if (n < 0)
		answer_errno();
	else
		answer("ok %.*s", (int)n, buf);
}

static void cmd_stat(char **a)
{
	struct stat st;
	answer_stat(lstat(a[0], &st), &st);
}

static void cmd_fchmod(char **a) { done(fchmod(atoi(a[0]), (mode_t)strtoul(a[1], NULL, 8))); }
static void cmd_chdir(char **a) { done(chdir(a[0])); }

static void cmd_fstat(char **a)
{
	struct stat st;
	answer_stat(fstat(atoi(a[0]), &st), &st);
}

static void cmd_statfs(char **a)
{
	struct statvfs v;
	if (statvfs(a[0], &v) < 0)
		answer_errno();
	else
		answer("ok %llu %llu", (unsigned long long)v.f_blocks * v.f_frsize, (unsigned long long)v.f_bavail * v.f_frsize);
}

static void cmd_ls(char **a)
{
	DIR *d = opendir(a[0]);
	if (!d) {
		answer_errno();
		return;
	}
	fputs("ok", stdout);
	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			printf(" %s", e->d_name);
	closedir(d);
	putchar('\n');
	fflush(stdout);
}

static void cmd_pread(char **a)
{
	size_t n = (size_t)atoll(a[2]);
	unsigned char *p = malloc(n + 1);
	ssize_t r = pread(atoi(a[0]), p, n, atoll(a[1]));
	if (r < 0)
		answer_errno();
	else
		answer_bytes(p, (size_t)r);
	free(p);
}

static void cmd_pwrite(char **a)
{
	size_t n;
	unsigned char *p = bytes_of(a[2], &n);
	ssize_t r = pwrite(atoi(a[0]), p, n, atoll(a[1]));
	if (r < 0)
		answer_errno();
	else
		answer("ok %zd", r);
	free(p);
}

/* write FD HEX: at the file's own offset, or its end. */
static void cmd_write(char **a)
{
	size_t n;
	unsigned char *p = bytes_of(a[1], &n);
	ssize_t r = write(atoi(a[0]), p, n);
	if (r < 0)
		answer_errno();
	else
		answer("ok %zd", r);
	free(p);
}

static const struct command commands[] = {
	{"open", 2, cmd_open}, {"close", 1, cmd_close}, {"fsync", 1, cmd_fsync},
	{"ftruncate", 2, cmd_ftruncate}, {"truncate", 2, cmd_truncate}, {"fallocate", 3, cmd_fallocate},
	{"punch", 3, cmd_punch}, {"seek", 3, cmd_seek},
	{"rename", 2, cmd_rename}, {"unlink", 1, cmd_unlink}, {"mkdir", 1, cmd_mkdir}, {"rmdir", 1, cmd_rmdir},
	{"link", 2, cmd_link}, {"mkfifo", 1, cmd_mkfifo}, {"symlink", 2, cmd_symlink}, {"readlink", 1, cmd_readlink},
	{"chmod", 2, cmd_chmod}, {"chown", 3, cmd_chown}, {"utimens", 2, cmd_utimens},
	{"setxattr", 3, cmd_setxattr}, {"getxattr", 2, cmd_getxattr}, {"removexattr", 2, cmd_removexattr}, {"listxattr", 1, cmd_listxattr},
	{"stat", 1, cmd_stat}, {"fstat", 1, cmd_fstat}, {"statfs", 1, cmd_statfs}, {"ls", 1, cmd_ls}, {"chdir", 1, cmd_chdir}, {"fchmod", 2, cmd_fchmod},
	{"pread", 3, cmd_pread}, {"pwrite", 3, cmd_pwrite}, {"write", 2, cmd_write},
	{NULL, 0, NULL},
};

static const struct command *find(const struct command *table, const char *name)
{
	for (; table->name; table++)
		if (!strcmp(table->name, name))
			return table;
	return NULL;
}

/* parse splits a line and finds its command; it answers by itself if there is none. */
static const struct command *parse(char *line, char **args)
{
	char *save = NULL;
	int n = 0;
	for (char *w = strtok_r(line, " \n", &save); w && n <= MAX_ARGS; w = strtok_r(NULL, " \n", &save))
		args[n++] = w;
	const struct command *c = n ? find(commands, args[0]) : NULL;
	if (n && !c)
		c = find(memory_commands, args[0]);
	if (c && c->args == n - 1)
		return c;
	answer("err USAGE %s", n ? args[0] : "");
	return NULL;
}

static void run(const struct command *c, char **args)
{
	int sig = sigsetjmp(fault_return, 1);
	if (sig) {
		fault_armed = 0;
		answer("err %s", sig == SIGBUS ? "SIGBUS" : "SIGSEGV");
		return;
	}
	fault_armed = 1;
	c->run(args);
	fault_armed = 0;
}

int main(void)
{
	struct sigaction sa = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	char *line = NULL;
	size_t cap = 0;
	while (getline(&line, &cap, stdin) > 0) {
		char *args[MAX_ARGS + 1] = {0};
		const struct command *c = parse(line, args);
		if (c)
			run(c, args + 1);
	}
	free(line);
	return 0;
}
