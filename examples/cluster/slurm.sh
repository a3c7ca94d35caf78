#!/usr/bin/env bash
#SBATCH --job-name=envfleet
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
# Runs a script on a Ray cluster of all nodes of the allocation:
#   sbatch --nodes 4 --cpus-per-task 32 examples/cluster/slurm.sh train.py [arguments]
set -euo pipefail

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(head -n 1 <<<"$nodes")
# A port of this job's own: other jobs may share the node.
export RAY_ADDRESS="$head:$((20000 + SLURM_JOB_ID % 20000))"

srun --nodes 1 --ntasks 1 --nodelist "$head" \
  ray start --head --node-ip-address "$head" --port "${RAY_ADDRESS##*:}" --num-cpus "$SLURM_CPUS_PER_TASK" --block &
until ray status --address "$RAY_ADDRESS" >/dev/null 2>&1; do sleep 2; done

others=$((SLURM_JOB_NUM_NODES - 1))
if ((others > 0)); then
  srun --nodes "$others" --ntasks "$others" --exclude "$head" \
    ray start --address "$RAY_ADDRESS" --num-cpus "$SLURM_CPUS_PER_TASK" --block &
fi

# On the head's node; the job ends, and Ray with it, when the script does.
srun --overlap --nodes 1 --ntasks 1 --nodelist "$head" python "$@"
