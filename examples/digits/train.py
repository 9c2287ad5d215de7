#!/usr/bin/env python3
"""Train one classifier in several processes on several dsmfs mounts.

Every worker maps the same .npy file of its own mount, adds its gradient steps to
it in place, and calls flush(). The file is summed (``user.dsm.merge=sum``), so
after flush() the array also holds the steps of all other workers. Nothing else
passes between them. The same training is done serially first, for comparison.

    train.py MOUNT MOUNT MOUNT     one worker per mount
    train.py --dir DIR             the mounts DIR/node1, DIR/node2, ... of "dsmfs dev"

Exits 1 if the distributed training is more than --points worse than the serial.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers are the parallelism
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import glob
import multiprocessing
import shutil
import signal
import sys
import time

import model
import numpy as np
from report import plot, traffic

AREA = "digits"  # the directory on the mounts; its attributes are inherited
FILE = "weights.npy"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mounts", nargs="*", help="mount points of one cluster, one worker each")
    p.add_argument("--dir", help="use the mounts DIR/node*")
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--batch", type=int, default=16, help="examples per step")
    p.add_argument(
        "--rate", type=float, default=0.15, help="learning rate of the first epoch; it falls linearly to a tenth"
    )
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--points", type=float, default=1.5, help="how many points of accuracy may be lost")
    p.add_argument("--plot", default="digits.png", help="where to write the plot")
    a = p.parse_args()
    if a.dir:
        a.mounts += sorted(glob.glob(os.path.join(a.dir, "node*")))
    if not a.mounts:
        p.error("want mount points, or --dir")
    for m in a.mounts:
        if not os.path.exists(os.path.join(m, ".dsm", "version")):
            p.error(f"{m} is not a dsmfs mount")
    return a


def batches(rng, examples, size):
    """Yield the indices of the batches of one epoch, every example once."""
    order = rng.permutation(examples)
    for at in range(0, len(order) - size + 1, size):
        yield order[at : at + size]


def rate(a, epoch):
    """Return the learning rate of an epoch."""
    return a.rate * (1 - 0.9 * epoch / max(1, a.epochs - 1))


def serial(a, x, y, x_test, y_test):
    """Train alone. Return the loss and test accuracy after every epoch."""
    w, rng, history = model.initial(a.seed), np.random.default_rng(a.seed), []
    for epoch in range(a.epochs):
        for b in batches(rng, len(x), a.batch):
            model.step(w, x[b], y[b], rate(a, epoch))
        history.append((model.evaluate(w, x, y)[0], model.evaluate(w, x_test, y_test)[1]))
    return history


def create(mount, seed, workers):
    """Make the shared file: the parameters, then the number of steps that each worker has added."""
    directory = os.path.join(mount, AREA)
    if os.path.exists(directory):
        shutil.rmtree(directory)
    os.mkdir(directory)
    os.setxattr(directory, "user.dsm.merge", b"sum")
    w = np.lib.format.open_memmap(os.path.join(directory, FILE), "w+", np.float32, (model.PARAMETERS + workers,))
    w[: model.PARAMETERS] = model.initial(seed)
    w.flush()
    return os.path.getsize(os.path.join(directory, FILE))


def work(me, a, data, shared):
    """Be one worker: a third of the examples, every step published."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the workers
    x, y, x_test, y_test = data
    workers = len(a.mounts)
    mine = np.arange(me, len(x), workers)
    whole = np.load(os.path.join(a.mounts[me], AREA, FILE), mmap_mode="r+")
    w, counts = whole[: model.PARAMETERS], whole[model.PARAMETERS :]
    rng = np.random.default_rng((a.seed, me))
    others = [o for o in range(workers) if o != me]
    done = np.frombuffer(shared["done"], np.float64).reshape(workers, -1)
    for epoch in range(a.epochs):
        lags, ages = [], []
        for b in batches(rng, len(mine), a.batch):
            model.step(w, x[mine[b]], y[mine[b]], rate(a, epoch))
            counts[me] += 1
            steps = int(counts[me])
            done[me, steps] = time.monotonic()
            whole.flush()  # publishes this step, and brings in everybody else's
            lag, age = staleness(done, counts, others)
            lags.append(lag)
            ages.append(age)
        shared["barrier"].wait()  # everybody has published
        whole.flush()
        result = {"worker": me, "epoch": epoch, "lags": lags, "ages": ages, "sum": float(w.astype(np.float64).sum())}
        if me == 0:
            result["loss"] = model.evaluate(w, x, y)[0]
            result["accuracy"] = model.evaluate(w, x_test, y_test)[1]
            result["missing"] = int(sum(np.count_nonzero(done[o]) for o in range(workers)) - counts.sum())
        shared["results"].put(result)
        shared["barrier"].wait()  # nobody goes on before everybody has looked


def staleness(done, counts, others):
    """Return how many steps of the others this worker lacks, and how old the oldest of them is.

    The number of steps that the array contains travels in the array itself. When
    each was really done is in ``done``, memory of this machine outside of dsmfs.
    """
    lag, age, now = 0, 0.0, time.monotonic()
    for o in others:
        has = int(counts[o])
        made = int(np.count_nonzero(done[o]))
        if made > has:
            lag += made - has
            age = max(age, now - done[o, has + 1])
    return lag, age


def distributed(a, data, before, size):
    """Train on all mounts, printing every epoch. Return its history and the staleness seen."""
    context = multiprocessing.get_context("fork")
    workers = len(a.mounts)
    steps = a.epochs * (len(data[0]) // workers // a.batch + 1) + 2
    shared = {
        "done": context.RawArray("d", workers * steps),
        "barrier": context.Barrier(workers, timeout=120),
        "results": context.Queue(),
    }
    processes = [context.Process(target=work, args=(i, a, data, shared), daemon=True) for i in range(workers)]
    for p in processes:
        p.start()
    history, lags, ages = [], [], []
    print(
        f"{'epoch':>5} {'loss':>8} {'serial':>8}   {'accuracy':>8} {'serial':>8}   {'steps behind':>12} {'ms behind':>9}",
        flush=True,
    )
    early = []  # a queue keeps the order of each worker, not that of all: some may be an epoch ahead
    for epoch in range(a.epochs):
        results = [r for r in early if r["epoch"] == epoch]
        early = [r for r in early if r["epoch"] != epoch]
        while len(results) < workers:
            r = next_result(shared["results"], processes)
            (results if r["epoch"] == epoch else early).append(r)
        first = next(r for r in results if r["worker"] == 0)
        if first["missing"]:
            sys.exit(
                f"epoch {epoch + 1}: {first['missing']} steps are missing from the shared array after everybody published"
            )
        lag = [v for r in results for v in r["lags"]]
        age = [v for r in results for v in r["ages"]]
        lags += lag
        ages += age
        history.append((first["loss"], first["accuracy"]))
        print(
            f"{epoch + 1:5} {first['loss']:8.4f} {before[epoch][0]:8.4f}   {first['accuracy']:8.2%} {before[epoch][1]:8.2%}"
            f"   {np.mean(lag):12.2f} {1e3 * np.mean(age):9.2f}",
            flush=True,
        )
    for p in processes:
        p.join()
    return history, np.array(lags), np.array(ages)


def next_result(queue, processes):
    """Return what the next worker reports; end if one has died."""
    while True:
        try:
            return queue.get(timeout=1)
        except Exception as e:
            dead = [p for p in processes if p.exitcode not in (None, 0)]
            if dead:
                for p in processes:
                    p.terminate()
                sys.exit(f"{len(dead)} of {len(processes)} workers died: {e!r}")


def main():
    a = arguments()
    data = model.data(a.seed)
    print(
        f"{len(data[0])} digits to train on, {len(data[2])} to test; {model.PARAMETERS} parameters; {len(a.mounts)} workers: {' '.join(a.mounts)}"
    )
    start = time.monotonic()
    before = serial(a, *data)
    print(
        f"serial: {a.epochs} epochs in {time.monotonic() - start:.1f} s, test accuracy {before[-1][1]:.2%}", flush=True
    )

    size = create(a.mounts[0], a.seed, len(a.mounts))
    moved = traffic(a.mounts)
    start = time.monotonic()
    history, lags, ages = distributed(a, data, before, size)
    took = time.monotonic() - start
    flushes = len(lags)
    print(
        f"\n{flushes} steps in {took:.1f} s, each published with flush(): {1e3 * took * len(a.mounts) / flushes:.2f} ms per step of a worker"
    )
    for line in traffic(a.mounts, since=moved, flushes=flushes, size=size):
        print(line)
    print(
        f"staleness after flush(): {lags.mean():.2f} steps of others missing on average, 95 % under {np.percentile(lags, 95):.0f}, most {lags.max()};"
        f" {1e3 * ages.mean():.2f} ms on average, most {1e3 * ages.max():.1f} ms"
    )
    plot(a.plot, before, history, lags)
    print(f"plot: {a.plot}")

    lost = 100 * (before[-1][1] - history[-1][1])
    passed = lost <= a.points
    print(
        f"\ntest accuracy {history[-1][1]:.2%} with {len(a.mounts)} workers, {before[-1][1]:.2%} serially:"
        f" within {a.points:g} points of serial: {'PASS' if passed else 'FAIL'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
