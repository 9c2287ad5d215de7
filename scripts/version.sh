#!/usr/bin/env bash
# Prints the one version of this tree: of the program, the man page and the Python package.
#
# At a tag v1.2.3 it is 1.2.3, four commits later 1.2.3+4.gCOMMIT, before the first tag 0.0.0+gCOMMIT, with .dirty at the
# end if files differ from the commit. That is a version for semver and for Python (PEP 440) alike. The first line of a file
# VERSION, which archives without history have, comes before all that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -s VERSION ]; then
    head -n 1 VERSION
    exit
fi
# An archive that was unpacked within another repository does not have that one's version.
[ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] || { echo 0.0.0+unknown; exit; }
text=$(git describe --tags --match 'v[0-9]*' --long --dirty=.dirty --abbrev=12 2>/dev/null) || {
    commit=$(git rev-parse --short=12 HEAD)
    git diff --quiet HEAD -- || commit+=.dirty
    echo "0.0.0+g$commit"
    exit
}
# v1.2.3-4-gCOMMIT[.dirty]; the tag itself may have dashes.
rest=${text##*-}
text=${text%-*}
count=${text##*-}
tag=${text%-*}
tag=${tag#v}
case $count$rest in
0*.dirty) echo "$tag+dirty" ;;
0*) echo "$tag" ;;
*) echo "$tag+$count.$rest" ;;
esac
