"""One client of a workload: does operations on a mount and prints what it asked and what came back.

usage: python -m integration.chaos.workers WORKLOAD ACTION MOUNT NUMBER SEED NODE PAUSE

Each operation is two lines of JSON on standard output, one before it and one after it, with the machine's
monotonic clock; one without the second was under way when the process died. ACTION is ``setup`` (once, before
the others), ``work`` (until standard input ends), ``publish`` and ``final`` (once each, when all is quiet).
"""

import sys

from integration.chaos.workers import attached, ballast, cells, database, locks, meeting, names, versions
from integration.chaos.workers.worker import Worker


def main() -> None:
    """Run the workload that the command line names."""
    workloads: dict[str, type[Worker]] = {
        "names": names.Names,
        "sizes": names.Sizes,
        "last": cells.Last,
        "max": cells.Max,
        "min": cells.Min,
        "sum": cells.Sum,
        "attached": attached.Attached,
        "locks": locks.Locks,
        "versioned": versions.Versioned,
        "sqlite": database.Database,
        "group": meeting.Meeting,
        "ballast": ballast.Ballast,
    }
    worker = workloads[sys.argv[1]](sys.argv[3:])
    getattr(worker, sys.argv[2])()


if __name__ == "__main__":
    main()
