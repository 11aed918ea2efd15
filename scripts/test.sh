#!/usr/bin/env bash
# Check lint, format and types, and run the tests, in the environment .venv, which scripts/setup.sh makes first (2 GB).
# usage: scripts/test.sh [options of pytest, such as tests/ops, -k name, or --cpu-capability avx2 or default, as on a
#                         processor without wider vectors]
#        scripts/test.sh --cuda-build [options of pytest]    the tests that need a CUDA build of torch but no GPU, in an
#                                                            environment of its own (.venv-cuda, 6 GB)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
if [ "${1:-}" = --cuda-build ]; then
  export VENV=${VENV_CUDA:-$root/.venv-cuda} TORCH=${TORCH_CUDA:-torch==2.14.1}
  bash "$root/scripts/setup.sh"
  cd "$root"
  exec "$VENV/bin/python" -m pytest -m cuda_build tests/cuda_build "${@:2}"
fi
bash "$root/scripts/setup.sh" --fastbpe
bin=${VENV:-$root/.venv}/bin
cd "$root"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
# one process per core, and one more, because tests wait for the commands that they start (on two cores, three processes
# take a quarter less time than two)
unset PYTHONDONTWRITEBYTECODE  # or each process compiles all tests anew
exec "$bin/python" -m pytest --numprocesses "$(($(nproc) + 1))" --dist loadfile --no-loadscope-reorder "$@"
