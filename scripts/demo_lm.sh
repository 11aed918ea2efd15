#!/usr/bin/env bash
# A small DynamicConv language model with adaptive input and softmax on the English package descriptions of Debian, in
# words, lines independent, Nesterov momentum and one cosine cycle as in the paper; ends with its perplexity.
# usage: scripts/demo_lm.sh [options of scripts.reproduce, such as --raw DIR where there is no apt]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
bash "$root/scripts/setup.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${VENV:-$root/.venv}/bin/python" -m scripts.reproduce "$root/configs/debian_lm/dynamicconv.yaml" "$@"
