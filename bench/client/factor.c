/* Matrix factorisation by stochastic gradient descent: the factors are shared by programs that train on a part of the ratings each. */
#define _GNU_SOURCE
#include "bench.h"
#include "../../include/dsmfs.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* The sizes of MovieLens 1M. A rating is made from hidden factors of a lower rank, so the error tells whether the training works. */
enum { USERS = 6040, ITEMS = 3706, RANK = 100, HIDDEN = 8, RATINGS = 1000000, BETWEEN_SYNCS = 20000, EPOCHS = 5 };

struct rating {
	uint32_t user, item;
	float value;
};

struct meeting {
	_Atomic uint32_t arrived;
	_Atomic double error[64];
};

static uint64_t next(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return *state = x;
}

static float uniform(uint64_t *state) { return (float)(next(state) >> 40) / (1 << 24); }

/* meet returns when all have called it as often. */
static void meet(struct meeting *m, uint32_t nodes)
{
	uint32_t until = (m->arrived++ / nodes + 1) * nodes;
	while (m->arrived < until)
		sched_yield();
}

static float *hidden(uint64_t *state, size_t rows)
{
	float *f = malloc(rows * HIDDEN * sizeof *f);
	for (size_t i = 0; i < rows * HIDDEN; i++)
		f[i] = uniform(state);
	return f;
}

/* part_of makes the ratings, and returns those of one node. */
static struct rating *part_of(uint32_t node, uint32_t nodes, size_t *n)
{
	uint64_t state = 88172645463325252u;
	float *users = hidden(&state, USERS), *items = hidden(&state, ITEMS);
	struct rating *all = malloc(RATINGS / nodes * sizeof *all);
	*n = RATINGS / nodes;
	for (size_t i = 0; i < *n * nodes; i++) {
		struct rating r = {.user = (uint32_t)(next(&state) % USERS), .item = (uint32_t)(next(&state) % ITEMS)};
		for (size_t k = 0; k < HIDDEN; k++)
			r.value += users[r.user * HIDDEN + k] * items[r.item * HIDDEN + k];
		if (i % nodes == node)
			all[i / nodes] = r;
	}
	free(users);
	free(items);
	return all;
}

/* learn makes one step by a rating, and returns the error before. */
__attribute__((optimize("O3", "fast-math"), target_clones("avx2", "default"))) static float learn(float *user, float *item, float value)
{
	const float rate = 0.01f, decay = 0.002f;
	float got = 0;
	for (size_t k = 0; k < RANK; k++)
		got += user[k] * item[k];
	float off = value - got;
	for (size_t k = 0; k < RANK; k++) {
		float u = user[k], v = item[k];
		user[k] = u + rate * (off * v - decay * u);
		item[k] = v + rate * (off * u - decay * v);
	}
	return off * off;
}

static void must(int64_t result)
{
	if (result < 0)
		die(dsmfs_error());
}

/* train prints the median seconds of an epoch, and the error of all in the last one. area is NULL in plain shared memory. */
static void train(float *factors, dsmfs *area, const char *meeting, uint32_t node, uint32_t nodes)
{
	struct meeting *m = map_file(meeting, sizeof *m);
	size_t n;
	struct rating *part = part_of(node, nodes, &n);
	float *users = factors, *items = factors + (size_t)USERS * RANK;
	int64_t took[EPOCHS];
	if (node == 0) {
		uint64_t state = 1;
		for (size_t i = 0; i < (size_t)(USERS + ITEMS) * RANK; i++)
			factors[i] = uniform(&state) * 0.3f;
		if (area)
			must(dsmfs_publish(area));
	}
	puts("ready");
	fflush(stdout);
	meet(m, nodes);
	if (area)
		must(dsmfs_acquire(area));
	for (size_t epoch = 0; epoch < EPOCHS; epoch++) {
		double error = 0;
		meet(m, nodes);
		int64_t start = now();
		for (size_t i = 0; i < n; i++) {
			error += learn(users + (size_t)part[i].user * RANK, items + (size_t)part[i].item * RANK, part[i].value);
			if (area && (i + 1) % BETWEEN_SYNCS == 0)
				must(dsmfs_sync(area));
		}
		m->error[node] = error;
		meet(m, nodes);
		took[epoch] = now() - start;
	}
	double error = 0;
	for (uint32_t i = 0; i < nodes; i++)
		error += m->error[i];
	printf("%.6f %.6f\n", (double)median(took, EPOCHS) / 1e9, sqrt(error / ((double)n * nodes)));
}

/* factor-attached SOCKET PATH MEETING NODE NODES: trains in an area. MEETING is a file in memory that all share, and no part of the measurement. */
void factor_attached(char **a)
{
	dsmfs *area;
	if (dsmfs_attach(a[0], a[1], DSMFS_WRITE, &area) < 0)
		die(dsmfs_error());
	train(dsmfs_data(area), area, a[2], (uint32_t)atol(a[3]), (uint32_t)atol(a[4]));
	dsmfs_detach(area);
}

/* factor-shared FILE MEETING NODE NODES: the same in the memory of a file. */
void factor_shared(char **a)
{
	train(map_file(a[0], (size_t)(USERS + ITEMS) * RANK * sizeof(float)), NULL, a[1], (uint32_t)atol(a[2]), (uint32_t)atol(a[3]));
}
