#!/usr/bin/env bash
# The first half hour on a GPU: self-test, tests, benchmarks and compute-sanitizer, on one page, OUT/first_gpu.md.
# usage: scripts/first_gpu.sh OUT [--device cuda:N]    in .venv-cuda, an environment with a CUDA build of torch
#                                                      (TORCH=SPEC), which is made first; VENV=DIR chooses another,
#                                                      taken as it is where it is there, without a network
#        scripts/first_gpu.sh OUT --device cpu         a rehearsal at small sizes on a CPU, in .venv
#        --rerun                                       run what has passed already, too
#        --only info,tests                             run these sections alone, for a machine that is there for minutes
#                                                      (the page has what is in OUT by then); in this order, those that
#                                                      tell most first: info, tests, train, decode, ops_float16, kernels,
#                                                      memcheck, racecheck, train_16384, train_wmt, ops_float32,
#                                                      ops_bfloat16, ops_narrow
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }
device=cuda rerun='' only='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --device | --only) [ $# -gt 1 ] || { usage >&2; exit 1; }
      printf -v "${1#--}" %s "$2"; shift ;;
    --device=* | --only=*) name=${1%%=*}; printf -v "${name#--}" %s "${1#*=}" ;;
    --rerun) rerun=1 ;;
    -*) echo "error: $1 is no option" >&2; usage >&2; exit 1 ;;
    *) out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || { usage >&2; exit 1; }
sections=(info tests train decode ops_float16 kernels memcheck racecheck train_16384 train_wmt ops_float32 ops_bfloat16
  ops_narrow)
for each in ${only//,/ }; do
  [[ " ${sections[*]} " == *" $each "* ]] || { echo "error: --only $each: the sections are ${sections[*]}" >&2; exit 1; }
done
given=${VENV:+$VENV/bin/python}
[ "$device" = cpu ] || export VENV=${VENV:-$root/.venv-cuda} TORCH=${TORCH:-torch==2.14.1}
[ -x "$given" ] || bash "$root/scripts/setup.sh"
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
python=${VENV:-$root/.venv}/bin/python
if ! "$python" - "$device" <<'PY'
import sys, torch
sys.exit(sys.argv[1] != "cpu" and not torch.cuda.is_available())
PY
then
  echo "error: --device $device: torch sees no CUDA device; --device cpu rehearses on a CPU" >&2
  exit 1
fi

failed=()
# section NAME MINUTES COMMAND...: what it prints goes to OUT/NAME.log; OUT/NAME.done says which command passed
section() {
  local name=$1 minutes=$2 status=0
  shift 2
  if [ -n "$only" ] && [[ ,$only, != *,$name,* ]]; then return; fi
  if [ -z "$rerun" ] && [ "$(cat "$out/$name.done" 2>/dev/null)" = "$*" ]; then
    echo "$name: done before"
    return
  fi
  echo "$name (at most $minutes minutes)"
  rm -f "$out/$name.done"
  echo "$ ${*//"$root/"/}" >"$out/$name.log"
  timeout --kill-after=10 "${minutes}m" "$@" >>"$out/$name.log" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    echo "$*" >"$out/$name.done"
  else
    [ "$status" != 124 ] || echo "it took more than $minutes minutes" >>"$out/$name.log"
    echo "  failed: $(tail -n 1 "$out/$name.log")"
    failed+=("$name")
  fi
}
# -Wdefault: a device brings warnings of torch's that no other machine has
pytest=(env OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider --disable-warnings -Wdefault -m gpu
  "--device=$device")
bench() { section "${@:1:2}" "$python" -m scripts.bench "${@:3:1}" "--device=$device" "${effort[@]}" "${@:4}"; }
effort=(--seconds=0.3) sizes=(--channels=1024 --heads=16 --lengths=32,128,512,2048 --tokens=16384) dtype=bfloat16
kernels=()
train=(--widths=512 --layers=7,6 --tokens=4096 '--flags=--fp16 --dropout 0.3' '--models=transformer,dynamicconv 3,15')
decode=(--sentences=128,32,1)
if [ "$device" = cpu ]; then
  effort=(--seconds=0.01 --threads=1) sizes=(--channels=64 --heads=2 --lengths=16,64 --tokens=128) dtype=float32
  kernels=(--tokens=16 --channels=64 --length=16 --kernels=31)
  train=(--tokens=64 --vocab-size=60 --precisions=fp32 '--models=transformer,ours dynamicconv 31')
  decode=(--sentences=2 --length=3 --vocab-size=60 --rows=128 --channels=64 --precisions=fp32)
fi
cores=$(nproc)

section info 3 "$python" -m lightconv_plugin.info
# each process has a CUDA context of half a gigabyte
section tests 8 "${pytest[@]}" tests/gpu "--numprocesses=$((cores < 8 ? cores : 8))" --dist=worksteal
bench train 2 train "${train[@]}"
bench decode 3 decode "${decode[@]}"
ops() { bench "ops_$1" 2 ops "--dtype=$1" "${sizes[@]}"; }
[ "$device" = cpu ] || ops float16
bench kernels 3 kernels "${kernels[@]}"
sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v compute-sanitizer || true)
checked=''  # of the convolutions: the kernels of each kind, by type, a head's width, K and padding, in both sizes of type
for each in float{32,16}-{1,64}-{31-30,65-64}; do checked+=${checked:+ or }"[$each]"; done
for tool in memcheck racecheck; do
  if [ -z "$sanitizer" ]; then
    echo "$tool: not run: compute-sanitizer is not on PATH, nor in CUDA_HOME or /usr/local/cuda"
    continue
  fi
  # without the allocator's cache, in whose blocks it would see no read past a tensor's end
  section $tool 3 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool $tool --error-exitcode=1 -- \
    "${pytest[@]}" tests/gpu/test_operators.py -k "$checked"
done
if [ "$device" != cpu ]; then
  bench train_16384 2 train "${train[@]}" --tokens=16384
  bench train_wmt 2 train "${train[@]}" --widths=1024 --tokens=3584
fi
ops float32
ops bfloat16
bench ops_narrow 1 ops --operators=light --kernel=4 --causal "--dtype=$dtype" "${sizes[@]}"  # causal-conv1d's widest

page=$out/.first_gpu.md.partial
{
  echo "# First run on $(sed -n 's/^cuda  *//p' "$out/info.log" 2>/dev/null | head -n 1)"
  printf '\n`scripts/first_gpu.sh --device %s`, commit %s, %s\n' "$device" "$(git rev-parse --short HEAD)" "$(date -u +%F)"
  for name in "${sections[@]}"; do
    printf '\n## %s\n\n' "$name"
    [ -e "$out/$name.log" ] || { echo "not run"; continue; }
    [ -e "$out/$name.done" ] && echo passed || echo "**failed**"
    printf '\n```text\n%s\n```\n' "$(grep -v '^measured ' "$out/$name.log")"
  done
} >"$page"
mv "$page" "$out/first_gpu.md"
echo "the page: $out/first_gpu.md"
[ ${#failed[@]} = 0 ] || { echo "error: failed: ${failed[*]}; see $out/first_gpu.md" >&2; exit 1; }
