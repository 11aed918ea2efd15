#!/usr/bin/env bash
# Every check that needs a GPU, in half an hour: self-test, tests, speeds and compute-sanitizer, with one log.
# usage: scripts/first_gpu.sh LOG [cuda | cuda:N]    in .venv-cuda, an environment with a CUDA build of torch
#                                                    (TORCH=SPEC), which is made first; VENV=DIR: another, as it is
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:--h} in -*) sed -n '2,4s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ]; exit ;; esac
log=$(realpath "$1") device=${2:-cuda}
given=${VENV:+$VENV/bin/python}
export VENV=${VENV:-$root/.venv-cuda} TORCH=${TORCH:-torch==2.14.1}
[ -x "$given" ] || bash "$root/scripts/setup.sh"
python=$VENV/bin/python
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "error: torch sees no CUDA device here" >&2
  exit 1
fi
cd "$root"

failed=()
run() { # NAME COMMAND...: with a heading in the log; what fails does not keep the rest from running
  echo "$1"
  printf '\n## %s\n$ %s\n' "$1" "${*:2}" >>"$log"
  "${@:2}" >>"$log" 2>&1 || { failed+=("$1"); echo "  failed: $(tail -n 1 "$log")"; }
}
# -Wdefault: a device brings warnings of torch's that no other machine has
pytest=(env OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider --disable-warnings -Wdefault -m gpu
  "--device=$device")
bench() { run "$1" "$python" -m scripts.bench "${1%% *}" "--device=$device" --seconds=0.3 "${@:2}"; }
cores=$(nproc) # each process has a CUDA context of half a gigabyte

echo "$(date -u +%F), commit $(git rev-parse --short HEAD), $device" >"$log"
run info "$python" -m lightconv_plugin.info
run tests "${pytest[@]}" tests/gpu "--numprocesses=$((cores < 8 ? cores : 8))" --dist=worksteal
bench train --widths=512 --layers=7,6 --tokens=4096 '--flags=--fp16 --dropout 0.3' --models=transformer,dynamicconv
bench decode --sentences=128,32,1
bench ops --dtype=float16 --channels=1024 --heads=16 --tokens=16384
bench kernels --tokens=16384 --length=8,32,512 --kernels=3,7,15,31,63,255
sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v compute-sanitizer || true)
checked=''  # of the convolutions: the kernels of each kind, by type, a head's width, K and padding
for each in float{32,16}-{1,64}-{31-30,65-64}; do checked+=${checked:+ or }"[$each]"; done
for tool in memcheck racecheck; do # without the allocator's cache, in whose blocks no read past a tensor's end shows
  run $tool env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${sanitizer:-compute-sanitizer}" --tool $tool --error-exitcode=1 \
    -- "${pytest[@]}" tests/gpu/test_operators.py -k "$checked"
done
echo "the log: $log"
[ ${#failed[@]} = 0 ] || { echo "error: failed: ${failed[*]}; see $log" >&2; exit 1; }
