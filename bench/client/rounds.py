"""Sums over the programs of several nodes, by rounds of dsmfs or by Gloo. Answers each line with the seconds of one."""

import os
import socket
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np


def gloo(rank: int, size: int, host: str, elements: int) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{host}:7411", rank=rank, world_size=size)
    values = torch.ones(elements)

    def step() -> None:
        values.fill_(1)  # else they grow for ever
        dist.all_reduce(values)

    return step


def rounds(how: str, mount: str, size: int, elements: int) -> Callable[[], None]:
    import dsmfs

    group = dsmfs.group(f"{mount}/{how}-group", size=size)
    path = f"{mount}/{how}"
    if group.rank == 0:
        dsmfs.create(path, elements, "f4", merge="sum", interval=0, replicas=2 if how == "copies" else 1).close()
    group.barrier()
    area = dsmfs.open(path, "r+" if how == "store" else "r")
    values = group.buffer(area.array) if how == "accumulate" else np.empty(elements, "f4")

    def step() -> None:
        values.fill(1)  # as with Gloo
        if how == "store":
            np.add(area.array, values, out=area.array)
        else:
            area.accumulate(values, group)
        group.round(area)

    return step


def main() -> None:
    what, rank, size, elements, where = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    step = gloo(rank, size, where, elements) if what == "gloo" else rounds(what, where, size, elements)
    for line in sys.stdin:
        took = []
        for _ in range(int(line)):
            began = time.perf_counter()
            step()
            took.append(time.perf_counter() - began)
        print("ok", statistics.median(took), flush=True)


main()
