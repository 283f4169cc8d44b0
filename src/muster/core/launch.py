"""How a job is started and held."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from muster.core.section import PositiveInt, Section, SlurmText


class Slurm(Section):
    """What is asked of Slurm where there is no allocation yet."""

    partition: SlurmText | None = None
    minutes: PositiveInt | None = Field(None, description="time limit; None: the partition's")
    gres: SlurmText | None = Field(None, description="per node, such as gpu:8")
    account: SlurmText | None = None
    qos: SlurmText | None = None
    constraint: SlurmText | None = None
    whole_nodes: bool = Field(True, description="share no node with another job (--exclusive)")
    requeue: bool = Field(
        False, description="go on from the newest checkpoint when Slurm starts the job again"
    )
    grace: PositiveInt = Field(
        60, description="seconds before the time limit at which the job is ended cleanly"
    )


class Launch(Section):
    """How the job is started and held."""

    launcher: str = Field("auto", description="auto, local, ssh, pdsh, openmpi, slurm, or a third party's")
    python: str | None = Field(
        None, description="the interpreter on the hosts; default: the one running muster"
    )
    hosts: PositiveInt | Literal["auto"] | None = Field(
        None,
        description="of those given, the first so many; auto: as many as train fastest; None: all of them",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="rendezvous; None: a free one"
    )
    address: str | None = Field(None, description="of the first host as its peers see it; None: found out")
    workdir: str | None = Field(
        None, description="on hosts that do not share the run folder; default ~/.cache/muster"
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="seconds for the whole job")
    connect_timeout: Annotated[float, Field(gt=0)] = Field(20, description="seconds until a host must answer")
    lease: Annotated[float, Field(ge=2)] = Field(
        15, description="seconds of silence after which host and controller give each other up"
    )
    threads: PositiveInt | None = Field(
        None, description="OMP_NUM_THREADS of a rank; None: cores / ranks on the host"
    )
    fanout: PositiveInt = Field(64, description="connections that are being made at once")
    home: str | None = Field(
        None,
        description="this machine's address as hosts see it (pdsh, openmpi, slurm); None: found out",
    )
    ssh_options: list[str] = Field(
        default_factory=list, description="of every ssh connection, such as [-F, FILE]"
    )
    options: list[str] = Field(
        default_factory=list, description="further arguments of pdsh, mpirun, srun or sbatch"
    )
    slurm: Slurm = Field(default_factory=Slurm)
