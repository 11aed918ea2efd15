#!/usr/bin/env bash
# Run what needs a GPU, in quarters of an hour: tests and speeds (part 1), trainings of the paper's size (part 2).
# usage: scripts/first_gpu.sh OUT [--device cuda:N] [--part 2]    OUT/SECTION.log has the output of a section; a second
#                                                                 call runs the sections that have not passed
#        scripts/first_gpu.sh OUT --device cpu [--part 2]         a rehearsal at small sizes on a CPU, in .venv
#        --only info,tests    only these sections. Part 1: info, compile, new, decode, train, train_16384, train_wmt,
#                             kernels, tests, memcheck, racecheck, ops_float16, ops_float32. Part 2: transformer,
#                             dynamicconv, self_attention, lightconv, on data that `scripts.reproduce` has binarised
#        VENV=DIR             use this environment as it is (default: make .venv-cuda, with the CUDA build of torch of
#                             $PYTHON (python3) if it has one, else with TORCH=SPEC (torch==2.13.0))
#        WHEELS=DIR           with the CUDA build of $PYTHON, install the other packages from these files, offline
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }
fail() { echo "error: $1" >&2; exit 1; }
device=cuda only='' part=1 out=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --device | --only | --part) [ $# -gt 1 ] || fail "$1 needs a value"; printf -v "${1#--}" %s "$2"; shift ;;
    --device=* | --only=* | --part=*) name=${1%%=*}; printf -v "${name#--}" %s "${1#*=}" ;;
    -*) fail "$1 is not an option; see --help" ;;
    *) out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || { usage; exit; }
case $part in
  1) sections=(info compile new decode train train_16384 train_wmt kernels tests memcheck racecheck ops_float16 ops_float32) ;;
  2) sections=(transformer dynamicconv self_attention lightconv) ;;
  *) fail "--part $part: expected 1 or 2" ;;
esac
for name in ${only//,/ }; do
  [[ " ${sections[*]} " == *" $name "* ]] || fail "--only $name: the sections of part $part are ${sections[*]}"
done

# a CUDA build of torch that is already installed is not downloaded again
if [ -z "${VENV:-}" ] && [ "$device" != cpu ]; then
  export VENV=$root/.venv-cuda TORCH=${TORCH:-torch==2.13.0}
  if "${PYTHON:-python3}" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; then
    [ -x "$VENV/bin/pip" ] || "${PYTHON:-python3}" -m venv --system-site-packages "$VENV"
    "$VENV/bin/python" -m pip install --quiet --no-build-isolation ${WHEELS:+--no-index --find-links "$WHEELS"} \
      -e "$root[fairseq,recipes,dev]"
  else
    bash "$root/scripts/setup.sh"
  fi
fi
python=${VENV:-$root/.venv}/bin/python
[ -x "$python" ] || fail "there is no $python; run scripts/setup.sh, or set VENV"
"$python" -c 'import sys, torch; sys.exit(sys.argv[1] != "cpu" and not torch.cuda.is_available())' "$device" ||
  fail "--device $device: torch sees no CUDA device here; --device cpu rehearses on a CPU"
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"

failed=()
# section NAME MINUTES COMMAND...: its output goes to OUT/NAME.log; OUT/NAME.passed has the command that passed
section() {
  local name=$1 minutes=$2 status=0
  shift 2
  if [ -n "$only" ] && [[ ,$only, != *,$name,* ]]; then return; fi
  if [ "$(cat "$out/$name.passed" 2>/dev/null)" = "$*" ]; then
    echo "$name: passed before"
    return
  fi
  echo "$name (at most $minutes minutes)"
  echo "$(date -u +%F), commit $(git rev-parse --short HEAD): ${*//"$root/"/}" >"$out/$name.log"
  timeout --kill-after=10 "${minutes}m" "$@" >>"$out/$name.log" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    echo "$*" >"$out/$name.passed"
    return
  fi
  [ "$status" != 124 ] || echo "stopped after $minutes minutes" >>"$out/$name.log"
  echo "  failed: $(tail -n 1 "$out/$name.log")"
  failed+=("$name")
}
# -v: the log has the name of each test when it starts; -Wdefault: warnings that only this device causes are no errors
pytest=(env OMP_NUM_THREADS=1 "$python" -m pytest -v -p no:cacheprovider --disable-warnings -Wdefault -m gpu
  -o faulthandler_timeout=60 "--device=$device")
cores=$(nproc) # each process has a CUDA context of half a gigabyte
workers=("--numprocesses=$((cores < 8 ? cores : 8))" --dist=worksteal)
bench() { section "$1" "$2" "$python" -m scripts.bench "$3" "--device=$device" "${effort[@]}" "${@:4}"; }
effort=(--seconds=0.3) train=(--widths=512 --layers=7,6 '--flags=--fp16 --dropout 0.3' --models=transformer,dynamicconv)
decode=(--sentences=128,32,1 --reference) kernels=(--tokens=16384 --length=8,32,512 --kernels=3,31,63)
ops=(--channels=1024 --heads=16 --tokens=16384) training=(--from=train --seeds=1) wide=(--widths=1024)
tokens=(4096 16384 3584)
if [ "$device" = cpu ]; then
  effort=(--seconds=0.01) train=(--vocab-size=60 '--models=transformer,ours dynamicconv 31') decode=(--sentences=2 --length=3 --reference)
  kernels=(--tokens=16 --channels=64 --length=16 --kernels=31) ops=(--channels=64 --heads=2 --tokens=128 --lengths=16)
  training=(--dry-run --seeds=1) wide=() tokens=(64 64 64)
fi

if [ "$part" = 2 ]; then
  for name in "${sections[@]}"; do
    section "$name" 8 "$python" -m scripts.reproduce "configs/debian_docs_en_de/$name.yaml" "${training[@]}"
  done
else
  section info 3 "$python" -m lightconv_plugin.info
  section compile 4 "$python" -m tests.gpu.compile "$device"
  # tests that no GPU has run
  section new 5 "${pytest[@]}" tests/gpu/test_kernels.py tests/gpu/test_captured_search.py \
    tests/gpu/test_captured_training.py "${workers[@]}"
  bench decode 4 decode "${decode[@]}"
  bench train 2 train "${train[@]}" "--tokens=${tokens[0]}"
  bench train_16384 2 train "${train[@]}" "--tokens=${tokens[1]}"
  bench train_wmt 2 train "${train[@]}" "${wide[@]}" "--tokens=${tokens[2]}"
  bench kernels 3 kernels "${kernels[@]}"
  section tests 6 "${pytest[@]}" tests/gpu "${workers[@]}"
  sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v compute-sanitizer || true)
  for tool in memcheck racecheck; do # without the allocator's cache, whose blocks hide reads past a tensor's end
    if [ "$device" = cpu ] || [ -z "$sanitizer" ]; then
      echo "$tool: not run: it needs a GPU, and compute-sanitizer on PATH, in CUDA_HOME or in /usr/local/cuda"
      continue
    fi
    section $tool 4 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool $tool --error-exitcode=1 -- \
      "${pytest[@]}" tests/gpu/test_kernels.py
  done
  [ "$device" = cpu ] || bench ops_float16 2 ops --dtype=float16 "${ops[@]}"
  bench ops_float32 2 ops "${ops[@]}"
fi
echo "the logs: $out"
[ ${#failed[@]} = 0 ] || fail "failed: ${failed[*]}; see their logs in $out"
