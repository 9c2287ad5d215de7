#!/usr/bin/env python3
"""Sums up go test.

Reads the output of ``go test -json`` on standard input, prints a line for each
package, everything that a failing test printed, why tests were skipped, and a
last line with the counts. Ends with status 1 if anything failed.

usage: go test -json ./... | gotest.py WHAT
"""

import collections
import json
import re
import sys
from typing import Any


def main() -> int:
    """Sum up standard input."""
    what = sys.argv[1] if len(sys.argv) > 1 else "tests"
    output: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    count: collections.Counter[str] = collections.Counter()
    skips: collections.Counter[str] = collections.Counter()
    broken: collections.Counter[str] = collections.Counter()  # failed tests of each package
    failed = False
    for line in sys.stdin:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:  # what the go command itself has to say
            print(line, end="")
            continue
        action, package, test = event["Action"], event.get("Package", ""), event.get("Test", "")
        if action in ("output", "build-output"):
            output[event.get("ImportPath", package), test].append(event["Output"])
            continue
        if action == "build-fail":
            failed = True
            print("".join(output.pop((event["ImportPath"], ""), [])), end="")
            continue
        if action not in ("pass", "fail", "skip"):
            continue
        text = output.pop((package, test), [])
        if test:
            count[action] += 1
            if action == "fail":
                failed = True
                broken[package] += 1
                print("".join(text), end="")
            elif action == "skip":
                skips[reason(text)] += 1
            continue
        short = package.removeprefix("github.com/dsmfs/dsmfs/")
        if action == "fail":
            failed = True
            if not broken[package]:  # no test of it: it did not build, crashed or left something behind
                count["fail"] += 1
            print("".join(text), end="")
            print(f"FAIL  {short}  {event.get('Elapsed', 0):.1f} s", flush=True)
        elif action == "pass":
            print(f"ok    {short}  {event.get('Elapsed', 0):.1f} s", flush=True)
    for why, n in skips.most_common():
        print(f"skipped {n}: {why}")
    print(f"== {what}: {count['pass']} passed, {count['skip']} skipped, {count['fail']} failed", flush=True)
    return 1 if failed else 0


def reason(output: list[str]) -> str:
    """Return why a test was skipped, given what it printed."""
    said = [s.strip() for s in output if s.strip() and not s.lstrip().startswith(("===", "---"))]
    return re.sub(r"^\S+\.go:\d+: ", "", said[-1]) if said else "no reason given"


if __name__ == "__main__":
    sys.exit(main())
