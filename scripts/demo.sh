#!/usr/bin/env bash
# From nothing to a BLEU score: English to German with a small DynamicConv on two CPU cores, in minutes.
# usage: scripts/demo.sh [options of scripts.reproduce, such as --raw DIR where there is no apt]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
bash "$root/scripts/setup.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${VENV:-$root/.venv}/bin/python" -m scripts.reproduce "$root/configs/debian_en_de/dynamicconv.yaml" "$@"
