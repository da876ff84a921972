#!/bin/bash
# A job script that stages with one task on each node, then trains from the staged copies. Give it to sbatch:
#
#     sbatch --nodes=4 slurm-job.sh /lustre/photos-packed /local/scratch torchrun --nproc-per-node=4 train.py
#
# The training command runs once on each node. Its script keeps the shared path: dlio.resolve, and the loaders, find
# the staged copy of that data set in DLIO_STAGED.
set -euo pipefail
dataset=$1 dest=$2
shift 2

# However the script ends, this job's leases end, and copies that no other job uses are removed. If the job is killed, the
# Epilog does this (slurm-epilog).
trap 'srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 dlio clean "$dest"' EXIT

# DLIO_STAGE_OPTIONS: for example `--strategy broadcast`.
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 ${DLIO_SRUN_OPTIONS:-} \
  dlio stage "$dataset" "$dest" --json ${DLIO_STAGE_OPTIONS:-}

export DLIO_STAGED=$dest
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 "$@"
