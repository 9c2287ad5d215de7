#!/usr/bin/env bash
# Installs what the tests need and a fresh Debian lacks, and the programs that are named: deps.sh iperf3. Says nothing if all is there.
set -euo pipefail

die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

if ! command -v go >/dev/null; then
    die "no Go: install the version that go.mod names, or a later one, from https://go.dev/dl"
fi
# Of the toolchain itself, without fetching another one; Go 1.21 and later fetch it when building.
have=$(GOTOOLCHAIN=local go env GOVERSION)
[[ ${have#go} =~ ^1\.(2[1-9]|[3-9][0-9]) ]] || die "Go $have is too old to fetch what go.mod asks for: install 1.21 or later"

missing=()
need() { "${@:2}" >/dev/null 2>&1 || missing+=("$1"); } # PACKAGE and a command that works if it is there
need nftables command -v nft
need iproute2 command -v ip
need fuse3 command -v fusermount3
need gcc sh -c 'command -v gcc && echo "#include <stdio.h>" | gcc -E -'
need libc6-dev sh -c 'echo "#include <stdio.h>" | gcc -E -'
need python3-venv python3 -c 'import ensurepip, venv'
need attr command -v getfattr
need util-linux command -v nsenter
need procps command -v pgrep
for program; do
    need "$program" command -v "$program"
done
[ ${#missing[@]} -gt 0 ] || exit 0

[ "$(id -u)" = 0 ] || die "missing: ${missing[*]}; as root: apt-get install ${missing[*]}"
command -v apt-get >/dev/null || die "missing, by their Debian names: ${missing[*]}"
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
