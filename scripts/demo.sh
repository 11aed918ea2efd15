#!/usr/bin/env bash
# From nothing to a BLEU score: English to German with a small DynamicConv on two CPU cores, in about six minutes.
# usage: scripts/demo.sh [options of scripts.reproduce, such as --raw DIR where there is no apt]
#        scripts/demo.sh --lm [options]    a language model of words with adaptive input and softmax, and its perplexity
# It installs what it needs into .venv (2 GB; see scripts/setup.sh --help). Results go to work/debian_en_de (debian_lm):
# the scores, and in dynamicconv/losses.svg a picture of the losses.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
config=debian_en_de
if [ "${1:-}" = --lm ]; then config=debian_lm; shift; fi
bash "$root/scripts/setup.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
python=${VENV:-$root/.venv}/bin/python
"$python" -m scripts.reproduce "$root/configs/$config/dynamicconv.yaml" "$@"
work=$root/work
if [[ " $* " =~ \ --work[=\ ]([^ ]+) ]]; then work=${BASH_REMATCH[1]}; fi
run=$work/$config/dynamicconv
if [ -e "$run/record.json" ]; then # with --print there is no run
  echo
  "$python" -m scripts.plot losses "$run" --out "$run/losses.svg"
fi
