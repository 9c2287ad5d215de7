#!/usr/bin/env bash
# Trains a classifier of handwritten digits in three processes on three dsmfs
# mounts of this machine, and leaves nothing behind but its plot, bin/digits.png.
#
# It installs what is missing (Debian packages, Python packages into .venv),
# builds bin/dsmfs, starts "dsmfs dev", runs examples/digits/train.py and stops.
# Arguments go to train.py. Exits with train.py's status, or 1 if anything is left.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "mounting needs root: run it with sudo"
if [ ! -e /dev/fuse ]; then
    modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || die "no /dev/fuse: load the fuse module, or give the container the device"
fi

# install PACKAGE... if the command before it fails
packages=()
need() { "${@:2}" >/dev/null 2>&1 || packages+=("$1"); }
need python3 python3 --version
need python3-venv python3 -c 'import ensurepip, venv'
need golang-go go version
if [ ${#packages[@]} -gt 0 ]; then
    say "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
fi

stamp=.venv/.requirements
if ! cmp -s requirements.txt "$stamp"; then
    say "installing the Python packages of requirements.txt into .venv"
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$stamp"
fi

say "building bin/dsmfs"
go build -ldflags "-X main.version=$(scripts/version.sh)" -o bin/dsmfs ./cmd/dsmfs || die "the build failed (Go $(sed -n 's/^go //p' go.mod) or later is needed)"

dir=$(mktemp -d /tmp/dsmfs-demo.XXXXXX)
cluster=
left=0

# stop ends the cluster as Ctrl-C does and checks that nothing of it is left.
stop() {
    trap - EXIT INT TERM
    if [ -n "$cluster" ]; then
        kill -INT "$cluster" 2>/dev/null || true
        for _ in $(seq 300); do
            kill -0 "$cluster" 2>/dev/null || break
            sleep 0.1
        done
        if kill -0 "$cluster" 2>/dev/null; then
            echo "demo: the cluster does not stop" >&2
            kill -KILL "$cluster"
            left=1
        fi
        wait "$cluster" || { echo "demo: dsmfs dev ended with status $?" >&2; left=1; }
    fi
    while read -r mount; do
        echo "demo: left mounted: $mount" >&2
        umount -l "$mount" || true
        left=1
    done < <(awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo)
    if pids=$(pgrep -f -- "$dir"); then
        echo "demo: left running:" >&2
        ps -fp "$(echo $pids | tr ' ' ,)" >&2 || true
        left=1
    fi
    if [ "$left" = 0 ]; then
        rm -rf --one-file-system "$dir"
    else
        echo "demo: see $dir" >&2
    fi
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "starting three nodes: bin/dsmfs dev --nodes 3 $dir/nodes"
# setsid: Ctrl-C reaches this script, which then stops the cluster in order.
setsid bin/dsmfs dev --nodes 3 "$dir/nodes" >"$dir/out" 2>&1 &
cluster=$!
for _ in $(seq 600); do
    grep -q ready "$dir/out" && break
    kill -0 "$cluster" 2>/dev/null || break
    sleep 0.1
done
grep -q ready "$dir/out" || { cat "$dir/out" >&2; left=1; die "the cluster did not start"; }

say "training: examples/digits/train.py --dir $dir/nodes $*"
status=0
.venv/bin/python examples/digits/train.py --dir "$dir/nodes" --plot bin/digits.png "$@" || status=$?

say "stopping"
stop
if [ "$left" != 0 ]; then
    exit 1
fi
echo "unmounted; nothing is left"
exit "$status"
