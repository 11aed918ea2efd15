#!/usr/bin/env bash
# Install fastBPE 0.1.0 into the environment of a Python, which needs no compiler afterwards.
# usage: scripts/install_fastbpe.sh [PYTHON]   (default: .venv/bin/python of this checkout; a C++ compiler is needed)
# Its package holds C++ that an old Cython wrote, which Python 3.11 does not compile: it is written anew in a venv that
# is thrown away, because the tools this takes are older than those of the environment.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
python=${1:-${VENV:-$root/.venv}/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "setuptools<81" wheel "cython>=3.0,<4"
"$folder/venv/bin/python" -m pip wheel --quiet --no-build-isolation --no-cache-dir --no-deps \
    --wheel-dir "$folder/wheels" fastBPE==0.1.0
"$python" -m pip install --quiet --force-reinstall --no-deps "$folder"/wheels/*.whl
"$python" -c 'from fastBPE import fastBPE'
echo "fastBPE is installed for $python"
