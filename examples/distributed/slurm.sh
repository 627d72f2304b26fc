#!/usr/bin/env bash
# Two machines with four GPUs each, under Slurm:  sbatch slurm.sh runs/digits
#
# Two minutes before the time limit Slurm sends SIGUSR1 to each step's processes. hl.StopOnSignal("SIGUSR1",
# requeue="slurm") hears it on whichever rank it reaches: all ranks save together, one puts the job back into the queue,
# and all leave. The job starts again with this same script, and resume="auto" goes on.
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

folder=${1:?the folder of the run, on a shared file system}
# Slurm runs a copy of this script, so what lies beside it is looked for where it was submitted from.
script=${SCRIPT:-$SLURM_SUBMIT_DIR/train.py}

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT

# One task a process: Slurm starts them, so signals reach Python itself and the exit codes are those of the ranks. Not
# the B: of --signal=B:USR1@120, which would send it to this shell alone. Each task tells Python its place.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    exec python "$0" "$@"' "$script" "$folder" "${@:2}"
