#!/usr/bin/env bash
# Installs PyTorch for the tests, once for all clones: 6 GB and minutes. Prints the directory of the packages, which pybind/conftest.py puts
# behind those of .venv. With --where it installs nothing, and prints nothing if they are not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[ -x "$python" ] || python=python3
# Another directory for other versions, also of what both environments have, and for another Python.
hash=$(cat requirements.txt requirements-torch.txt <("$python" -VV) | sha256sum | head -c 12)
base=${XDG_CACHE_HOME:-$HOME/.cache}/dsmfs
dir=$base/torch-$hash

if [ ! -e "$dir/.complete" ] && [ "${1-}" != --where ]; then
    mkdir -p "$base"
    exec {lock}>"$base/torch.lock"
    flock "$lock"
    if [ ! -e "$dir/.complete" ]; then
        echo "torch: installing PyTorch into $dir, once" >&2
        rm -rf "$dir"
        "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --target "$dir" \
            --constraint requirements.txt -r requirements-torch.txt >&2
        touch "$dir/.complete"
    fi
fi
[ ! -e "$dir/.complete" ] || echo "$dir"
