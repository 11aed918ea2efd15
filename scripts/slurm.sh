#!/usr/bin/env bash
# One configuration on the machines of a SLURM job; the folder work/ must be on a disk that all of them share.
# usage: sbatch --nodes 4 --gpus-per-node 8 --cpus-per-task 64 --time 24:00:00 scripts/slurm.sh CONFIG [options of scripts.reproduce]
#    or: sbatch --gpus-per-node 4 --cpus-per-task 32 --time 24:00:00 scripts/slurm.sh CONFIG    (one machine, 4 GPUs)
# A job that runs out of time, or loses a machine, is put in the queue again and goes on from the last checkpoint; after
# 50 times (or REQUEUES) it ends: perhaps its time is too short for a checkpoint.
# Submit it in the checkout, or set LIGHTCONV_CHECKOUT to that; VENV is the environment (default: .venv in the checkout).
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -euo pipefail
case "${1:-}" in "" | -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ]; exit ;; esac
: "${SLURM_JOB_ID:?is not set: this is for sbatch}"
# sbatch runs a copy of this file from elsewhere, so the checkout is where it was submitted from
root=${LIGHTCONV_CHECKOUT:-$SLURM_SUBMIT_DIR}
python=${VENV:-$root/.venv}/bin/python
[ -x "$python" ] || { echo "there is no $python: submit in the checkout, or set LIGHTCONV_CHECKOUT" >&2; exit 2; }
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000))

again() { # stop in order, so that nothing is left half written, and queue up again
  kill -TERM "$run" 2>/dev/null || true
  wait "$run" || true
  if [ "${SLURM_RESTART_COUNT:-0}" -ge "${REQUEUES:-50}" ]; then
    echo "this job has been queued again $SLURM_RESTART_COUNT times: does it get as far as a checkpoint? If so, submit it anew" >&2
    exit 1
  fi
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}
trap again USR1
trap 'kill -TERM "$run"; wait "$run" || true; exit 143' TERM
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # which srun takes from nowhere else
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
machines=()
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
  machines=(--nodes "$SLURM_JOB_NUM_NODES" --rendezvous "${hosts[0]}:$port"
    --launch "srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 --kill-on-bad-exit=1")
fi
# every machine has as many GPUs as this one, or says so
gpus=(${SLURM_GPUS_ON_NODE:+--devices "$SLURM_GPUS_ON_NODE"})
"$python" -m scripts.reproduce ${gpus[@]+"${gpus[@]}"} "$@" ${machines[@]+"${machines[@]}"} &
run=$!
wait "$run" # in the background, so that the signal is heeded at once
