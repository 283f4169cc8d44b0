"""Slurm: inside an allocation one srun starts all agents, which then connect to the controller. Where there
is no allocation yet, a batch script runs muster inside the one that Slurm grants."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from muster.core.errors import RecipeError
from muster.core.hostlist import fold_hosts
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.slurm import SlurmAsk
from muster.fleet.interrupts import GRACE
from muster.fleet.launchers.base import ControllerAddress, Request, dialling_argv, dialling_env, interpreter

ONE_MACHINE = False
DIALS = True

TICKET = "MUSTER_TICKET"  # tells a batch job's muster that the run folder was made for it

# What the allocation was asked for per task is not for the one task that starts a node's ranks (srun(1)).
_PER_TASK = (
    "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_EXACT",
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION",
)  # fmt: skip
_SRUN = ["env", *(word for name in _PER_TASK for word in ("-u", name)), "srun"]
# One task per node, with everything that the job has there; what ends it is ours to decide.
_STEP = [
    "--ntasks-per-node=1",
    "--overlap",
    "--cpu-bind=none",
    "--mem=0",
    "--export=ALL",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--chdir=/",
]


def remote(place: Placement, launch: Launch, argv: list[str]) -> list[str]:
    """Return a job step with that one task, whose input is srun's."""
    return [*_SRUN, "--nodes=1", "--ntasks=1", *_STEP, f"--nodelist={place.host}", *launch.options, *argv]


def requests(
    places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
) -> list[Request]:
    """Return one srun for all nodes."""
    assert home is not None
    agent = dialling_argv(interpreter(launch), job_id, "$SLURMD_NODENAME", home, launch, with_secret=False)
    argv = [
        *_SRUN,
        f"--nodes={len(places)}",
        f"--ntasks={len(places)}",
        *_STEP,
        "--input=none",
        f"--nodelist={fold_hosts(place.address for place in places)}",
        f"--job-name=muster-{job_id}",
        *launch.options,
        *agent,
    ]
    return [Request(tuple(place.host for place in places), tuple(argv), dialling_env(home), dials=True)]


@dataclass(frozen=True)
class BatchJob:
    """Where a batch job finds what it runs, and writes what it makes."""

    python: str
    recipe: str
    run: str
    output: str
    folder: str  # the working directory
    name: str
    ticket: str


def batch_script(ask: SlurmAsk, launch: Launch, batch: BatchJob) -> str:
    """Return the text for sbatch. A job that Slurm requeues continues the run that the first one began.

    Raises RecipeError for a path that #SBATCH lines cannot hold.
    """
    slurm = launch.slurm
    wanted = {
        "job-name": f"muster-{re.sub(r'[^A-Za-z0-9_.-]', '_', batch.name)}",
        "nodes": str(ask.nodes),
        "partition": ask.partition or slurm.partition,
        "time": str(slurm.minutes) if slurm.minutes else None,
        "gres": slurm.gres,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "output": _path(batch.output.replace("%", "%%")),
        "open-mode": "append",
        "signal": f"B:TERM@{slurm.grace}",
    }
    flags = ["exclusive", "mem=0"] if slurm.whole_nodes else []  # all CPUs, and all memory
    flags.append("requeue" if slurm.requeue else "no-requeue")
    lines = [f"#SBATCH --{key}={value}" for key, value in wanted.items() if value]
    lines += [f"#SBATCH --{flag}" for flag in flags]
    muster = [batch.python, "-m", "muster"]
    hosts = ["--hosts", str(SlurmAsk(None, ask.nodes, ask.slots))]
    train = [*muster, "train", batch.recipe, *hosts, "--output", batch.run]
    again = [*muster, "resume", batch.run]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"export {TICKET}={batch.ticket} {GRACE}={slurm.grace}",
            f"cd {shlex.quote(batch.folder)} || exit 1",
            f"if [ -e {shlex.quote(batch.run + '/job.json')} ]; then",
            f"  exec {shlex.join(again)}",
            "fi",
            f"exec {shlex.join(train)}",
            "",
        ]
    )


def _path(text: str) -> str:
    """Return a file name in the form that a #SBATCH line takes."""
    if re.search(r"[\s\"'\\#]", text):
        raise RecipeError(
            "has a character that an #SBATCH line cannot hold", where=text, hint="another --output or --runs"
        )
    return text
