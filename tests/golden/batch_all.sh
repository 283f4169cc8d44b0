#!/bin/bash
#SBATCH --job-name=muster-it_s_one
#SBATCH --nodes=4
#SBATCH --partition=gpu
#SBATCH --time=90
#SBATCH --gres=gpu:h100:8
#SBATCH --account=a
#SBATCH --qos=high
#SBATCH --constraint=[r1|r2]
#SBATCH --output=/runs/50%%/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
export MUSTER_TICKET=7ea MUSTER_GRACE=120
cd '/home/me and you' || exit 1
if [ -e '/runs/it'"'"'s one/job.json' ]; then
  exec /opt/venv/bin/python -m muster resume '/runs/it'"'"'s one'
fi
exec /opt/venv/bin/python -m muster train '/runs/it'"'"'s one/submitted.yaml' --hosts slurm:/4x8 --output '/runs/it'"'"'s one'
