#!/usr/bin/env bash
# The first half hour on a GPU: self-test, tests, compute-sanitizer and benchmarks, on one page, OUT/first_gpu.md.
# usage: scripts/first_gpu.sh OUT [--device cuda:N]    in .venv-cuda, an environment with a CUDA build of torch, which
#                                                      is made first (VENV=DIR and TORCH=SPEC choose others)
#        scripts/first_gpu.sh OUT --device cpu         a rehearsal at small sizes on a CPU, in .venv
#        --rerun                                       run what is done already, too
#        --only info,tests                             run these sections alone (a wrong name lists all)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in "" | -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; [ -n "${1:-}" ]; exit ;; esac
if [[ " $* " != *" --device cpu "* && " $* " != *" --device=cpu "* ]]; then
  export VENV=${VENV:-$root/.venv-cuda} TORCH=${TORCH:-torch==2.14.1}
fi
bash "$root/scripts/setup.sh"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${VENV:-$root/.venv}/bin/python" -m scripts.first_gpu "$@"
