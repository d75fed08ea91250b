#!/usr/bin/env bash
# Makes .venv with the given extras, once for each state of pyproject.toml: bash tools/setup.sh cpu,veomni,dev
#
# uv installs (two minutes; pip needs four) and compiles bytecode: Ray starts its workers with `python -B`, which never
# write it, and without it every import of every worker takes three times as long.
# PyTorch's CPU build is not on PyPI. It comes from the folder or index that pip is configured with, else from PyTorch's.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=$1
stamp=.venv/.installed-$extras
wanted=$(cat pyproject.toml requirements/*.txt | cksum)
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

find_uv() {
    command -v uv && return
    if [ ! -x .uv/bin/uv ]; then
        "${PYTHON:-python3}" -m venv .uv >&2 || { echo "Python's venv is missing; on Debian: apt-get install python3-venv" >&2; return 1; }
        .uv/bin/python -m pip install -qq uv >&2
    fi
    echo .uv/bin/uv
}
configured() { "${PYTHON:-python3}" -m pip config get "global.$1" 2>/dev/null || true; }

uv=$(find_uv)
[ -d .venv ] || "$uv" venv --quiet --python "${PYTHON:->=3.11,<3.13}" .venv
export UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy VIRTUAL_ENV=$PWD/.venv
index=$(configured index-url)
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
links=${PIP_FIND_LINKS:-$(configured find-links)}
install() { "$uv" pip install --override requirements/cpu-overrides.txt --constraint requirements/cpu.txt --editable ".[$extras]" "$@"; }

echo "installing opd_conf[$extras] into .venv: about 0.8 GB to download, 3 GB on disk, a minute or two"
if [ -n "$links" ] && install --find-links "${links%% *}" --quiet; then :; else install --torch-backend cpu; fi
echo "$wanted" > "$stamp"
