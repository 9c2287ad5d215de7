#!/usr/bin/env python3
"""Hogwild with PyTorch: workers add to one tensor that lives in a dsmfs file.

    hogwild.py MOUNT [MOUNT ...]     one worker process per mount

The model is a plain nn.Module whose parameters are views of one flat tensor from
torch.from_file(shared=True). The optimizer changes them in place, fsync publishes
the change, and because the file is summed the tensor then also holds what the
other workers did. Torch does not know that the memory is shared between nodes.
"""

import os
import sys

try:
    import torch
    from torch import nn
except ImportError:
    print("hogwild.py: skipped, PyTorch is not installed (pip install torch)")
    sys.exit(0)

STEPS, BATCH, FEATURES = int(os.environ.get("STEPS", "300")), 32, 20


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


def share(model, path):
    """Move the parameters of the model into the file at path and return its descriptor.

    The first caller makes the file and puts the initial values into it.
    """
    size = sum(p.numel() for p in model.parameters())
    first = not os.path.exists(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if first:
        os.setxattr(path, "user.dsm.dtype", b"f32")
        os.setxattr(path, "user.dsm.merge", b"sum")
        os.ftruncate(fd, 4 * size)
    flat = torch.from_file(path, shared=True, size=size, dtype=torch.float32)
    at = 0
    for p in model.parameters():
        view = flat[at : at + p.numel()].view_as(p)
        if first:
            view.copy_(p.data)
        p.data = view
        at += p.numel()
    os.fsync(fd)
    return fd


def batch(generator):
    """Return a batch of a function to learn."""
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x, torch.sin(x[:, :1] * 2) + x[:, 1:2]


def work(path, me):
    torch.set_num_threads(1)
    model = build()
    fd = share(model, path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(me + 1)
    for step in range(STEPS):
        x, y = batch(generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        os.fsync(fd)  # publish this step, take those of the others
        if step % 100 == 99:
            print(f"worker {me}, step {step + 1}: loss {loss.item():.4f}", flush=True)


def main():
    mounts = sys.argv[1:]
    if not mounts:
        sys.exit("usage: hogwild.py MOUNT [MOUNT ...]")
    paths = [os.path.join(m, "hogwild.f32") for m in mounts]
    model = build()
    if os.path.exists(paths[0]):
        os.unlink(paths[0])
    fd = share(model, paths[0])
    x, y = batch(torch.Generator().manual_seed(0))
    before = nn.functional.mse_loss(model(x), y).item()
    torch.multiprocessing.set_start_method("spawn")
    processes = [torch.multiprocessing.Process(target=work, args=(p, i)) for i, p in enumerate(paths)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    os.fsync(fd)
    after = nn.functional.mse_loss(model(x), y).item()
    print(f"loss {before:.4f} before, {after:.4f} after {STEPS} steps of {len(mounts)} workers")
    return int(any(p.exitcode for p in processes) or after >= before)


if __name__ == "__main__":
    sys.exit(main())
