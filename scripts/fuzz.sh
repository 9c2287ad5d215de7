#!/usr/bin/env bash
# Runs every fuzz target for a while: fuzz.sh [TIME], by default 20s each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-20s}
grep -rhl --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u | while read -r dir; do
    grep -rh --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' "$dir" | awk '{ print $2 }' | sort -u | while read -r target; do
        echo "== $dir $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir"
    done
done
