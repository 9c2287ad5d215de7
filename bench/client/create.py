"""Makes shared arrays of 4 KB. Answers each line, a number of them, with the median of the seconds that one took."""

import statistics
import sys
import time

import dsmfs


def main() -> None:
    mount, made = sys.argv[1], 0
    for line in sys.stdin:
        took = []
        for _ in range(int(line)):
            began = time.perf_counter()
            area = dsmfs.create(f"{mount}/made-{made}", 1024, "f4")
            took.append(time.perf_counter() - began)
            area.close()
            made += 1
        print("ok", statistics.median(took), flush=True)


main()
