#!/usr/bin/env bash
#SBATCH --job-name=raysim --nodes=4 --ntasks-per-node=1 --cpus-per-task=8 --time=12:00:00
#SBATCH --requeue --open-mode=append --signal=B:USR1@180
# One run of raysim on Slurm: a Ray cluster on the nodes of the job, which ends with it.
#   ray get-auth-token --generate >/dev/null      once; the home folder is that of all nodes
#   sbatch deploy/slurm.sh CONFIG output=/shared/runs/mine [KEY=VALUE...]
# The lines above are yours. A job that loses a node, or whose time is up in three minutes, goes back
# into the queue; --resume=auto begins, goes on after the last commit, or finds the run finished.
set -euo pipefail
export RAY_AUTH_MODE=token

trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$head:$((20000 + SLURM_JOB_ID % 20000))" # several jobs may share a node
srun ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
  raysim run "$@" runtime.address=auto --resume=auto &
wait $!
