"""What the digits example shows at its end: bytes moved, and a plot."""

import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def stats(mount):
    """Return the counters of ``/.dsm/stats`` of one mount."""
    with open(os.path.join(mount, ".dsm", "stats"), encoding="utf-8") as f:
        words = [line.split() for line in f]
    return {w[0]: int(w[1]) for w in words if len(w) == 2 and w[1].isdigit()}


def traffic(mounts, since=None, flushes=0, size=0):
    """Return the counters of all mounts or, given earlier ones, lines that say what was moved."""
    now = [stats(m) for m in mounts]
    if since is None:
        return now
    moved = {k: sum(n[k] - s.get(k, 0) for n, s in zip(now, since, strict=True)) for k in now[0]}
    lines = (
        [f"bytes of changed elements published: {mebibytes(moved['published_bytes'])}"]
        if "published_bytes" in moved
        else []
    )
    if "bytes_sent" in moved:
        lines.append(
            f"bytes moved between the nodes: {mebibytes(moved['bytes_sent'])};"
            f" sending the whole array to every other node at every step would be {mebibytes(flushes * size * (len(mounts) - 1))}"
        )
    return lines


def mebibytes(n):
    return f"{n / 2**20:.1f} MiB"


def plot(path, serial, history, lags):
    """Draw loss, accuracy and staleness of both trainings into a PNG file."""
    fig, (loss, accuracy, stale) = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    epochs = np.arange(1, len(serial) + 1)
    for axis, column, title in ((loss, 0, "training loss"), (accuracy, 1, "test accuracy")):
        axis.plot(epochs, [h[column] for h in serial], "--", color="0.4", label="serial")
        axis.plot(epochs, [h[column] for h in history], color="tab:blue", label="shared through dsmfs")
        axis.set(title=title, xlabel="epoch")
        axis.grid(alpha=0.3)
        axis.legend()
    loss.set_yscale("log")
    stale.hist(lags, bins=np.arange(-0.5, max(lags.max(), 5) + 1), color="tab:blue")
    stale.set(title="staleness after flush()", xlabel="steps of other workers missing", ylabel="flushes")
    fig.savefig(path, dpi=100)
    plt.close(fig)
