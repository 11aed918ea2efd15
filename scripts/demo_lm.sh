#!/usr/bin/env bash
# A small DynamicConv language model with adaptive input and softmax on the English package descriptions of Debian, in
# words, lines independent, Nesterov momentum and one cosine cycle as in the paper; ends with its perplexity.
# usage: scripts/demo_lm.sh [options of python -m data_prep for its data, such as --raw DIR where there is no apt]
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
python=${VENV:-$root/.venv}/bin/python
work=$root/work/debian_lm
export OMP_WAIT_POLICY=PASSIVE
PYTHONPATH=$root "$python" -m data_prep debian_descriptions --task language_modeling --out "$work" "$@"

device=$("$python" -c 'import torch; print("" if torch.cuda.is_available() else "--cpu")')
# fairseq resumes from checkpoint_last.pt, and finds nothing to do where training is complete
"$python" -m fairseq_cli.train "$work/binarised" --user-dir "$root/lightconv_plugin" $device --seed 1 \
  --task language_modeling --sample-break-mode eos --tokens-per-sample 256 --arch pla_dynamicconv_lm_small \
  --criterion adaptive_loss --ddp-backend legacy_ddp --optimizer nag --momentum 0.99 --clip-norm 0.1 \
  --lr 1.0 --lr-scheduler cosine --warmup-updates 200 --warmup-init-lr 1e-7 --lr-period-updates 1300 \
  --max-update 1500 --max-tokens 2048 --required-batch-size-multiple 1 --update-epoch-batch-itr True \
  --no-epoch-checkpoints --save-interval-updates 500 --keep-interval-updates 1 --num-workers 0 \
  --save-dir "$work/checkpoints" --log-format simple --log-interval 100 2>&1 |
  tee -a "$work/train.log" | grep --line-buffered -E 'train_inner|valid on|done training|Error|error' | cut -c1-160
"$python" -m fairseq_cli.eval_lm "$work/binarised" --user-dir "$root/lightconv_plugin" $device \
  --path "$work/checkpoints/checkpoint_best.pt" --gen-subset test --sample-break-mode eos --max-tokens 4096 \
  --required-batch-size-multiple 1 2>&1 | tee "$work/eval.log" | grep -E 'Evaluated|Loss|rror'
