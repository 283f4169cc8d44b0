#!/bin/bash
#SBATCH --job-name=muster-it_s_one
#SBATCH --nodes=3
#SBATCH --output=/runs/50%%/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --no-requeue
export MUSTER_TICKET=7ea MUSTER_GRACE=60
cd '/home/me and you' || exit 1
if [ -e '/runs/it'"'"'s one/job.json' ]; then
  exec /opt/venv/bin/python -m muster resume '/runs/it'"'"'s one'
fi
exec /opt/venv/bin/python -m muster train '/runs/it'"'"'s one/submitted.yaml' --hosts slurm:/3 --output '/runs/it'"'"'s one'
