#!/usr/bin/env bash
# Runs every fuzz target, or those whose name matches a pattern, one after the other:
# fuzz.sh [TIME of each, 30s] [PATTERN]. An input that fails is written to testdata/fuzz of its package,
# where it belongs: go test runs it from then on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-30s} pattern=${2:-.}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0 ran=0 failed=0
while IFS=: read -r file target; do
    dir=$(dirname "$file")
    ran=$((ran + 1))
    # What is new is made small for as long as a second, not a minute, of which nothing would be left for anything else.
    # A run that is told to end while a worker is busy may fail for that alone (golang/go issue 75804, mended in Go 1.27).
    if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s -parallel "${FUZZPROCS:-2}" "$dir" >"$out" 2>&1 </dev/null ||
        { grep -q 'context deadline exceeded' "$out" && ! grep -q 'Failing input\|panic' "$out"; }; then
        echo "ok    $dir $target  $(grep -o 'execs: [0-9]*' "$out" | tail -1)"
    else
        failed=$((failed + 1)) status=1
        grep -v '^fuzz: elapsed' "$out" || true
        echo "FAIL  $dir $target"
    fi
done < <(grep -rHo --include="*_test.go" "^func Fuzz[A-Za-z0-9_]*" . | sed "s/func //" | sort | grep -e ":.*$pattern")
echo "== fuzz targets: $((ran - failed)) passed, $failed failed, $time each"
exit "$status"
