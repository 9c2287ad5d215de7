#!/usr/bin/env bash
# Runs every fuzz target, or those whose name matches a pattern, FUZZPROCS (2) at a time, one processor each:
# fuzz.sh [TIME of each, 30s] [PATTERN]. An input that fails is written to testdata/fuzz of its package,
# where it belongs: go test runs it from then on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# one FILE:TARGET TIME runs one target, and prints what came of it in one piece.
one() {
    local dir=${1%/*} target=${1#*:} out
    # What is new is made small for as long as a second, not a minute, of which nothing would be left for anything else.
    # A run that is told to end while a worker is busy may fail for that alone (golang/go issue 75804, mended in Go 1.27).
    if out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$2" -fuzzminimizetime 1s -parallel 1 "$dir" 2>&1 </dev/null) ||
        { grep -q 'context deadline exceeded' <<<"$out" && ! grep -q 'Failing input\|panic' <<<"$out"; }; then
        echo "ok    $dir $target  $(grep -o 'execs: [0-9]*' <<<"$out" | tail -1)"
    else
        printf '%s\n' "$(grep -v '^fuzz: elapsed' <<<"$out")" "FAIL  $dir $target"
    fi
}
export -f one

time=${1:-30s} pattern=${2:-.}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
targets=$(grep -rHo --include="*_test.go" "^func Fuzz[A-Za-z0-9_]*" . | sed "s/func //" | sort | grep -e ":.*$pattern") || {
    echo "fuzz.sh: no target matches $pattern" >&2
    exit 1
}
xargs -P "${FUZZPROCS:-2}" -I{} bash -c 'one "$@"' _ {} "$time" <<<"$targets" | tee "$log"
failed=$(grep -c '^FAIL  ' "$log" || true)
echo "== fuzz targets: $(grep -c '^ok    ' "$log" || true) passed, $failed failed, $time each"
[ "$failed" -eq 0 ]
