"""How a job is started and supervised."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from muster.core.section import PositiveInt, Section, SlurmText


class Slurm(Section):
    """What is asked of Slurm where there is no allocation yet."""

    partition: SlurmText | None = Field(
        None,
        description="Partition (sbatch --partition). Null: the one of `--hosts slurm:`, else the default.",
    )
    minutes: PositiveInt | None = Field(
        None, description="Time limit in minutes. Null: the partition's default."
    )
    gres: SlurmText | None = Field(
        None, description="Generic resources per node (sbatch --gres), such as gpu:8. Null: none asked for."
    )
    account: SlurmText | None = Field(
        None, description="Account that pays (sbatch --account). Null: the user's default."
    )
    qos: SlurmText | None = Field(
        None, description="Quality of service (sbatch --qos). Null: the user's default."
    )
    constraint: SlurmText | None = Field(
        None, description="Features that nodes must have (sbatch --constraint). Null: none."
    )
    whole_nodes: bool = Field(
        True, description="Share no node with another job (sbatch --exclusive, with all memory)."
    )
    requeue: bool = Field(
        False, description="Let Slurm start the job again; it then resumes from the newest checkpoint."
    )
    grace: PositiveInt = Field(
        60, description="Seconds before the time limit at which the job is ended cleanly."
    )

    @model_validator(mode="after")
    def _begins(self) -> Slurm:
        if self.minutes is not None and 60 * self.minutes <= self.grace:
            raise ValueError(
                f"minutes={self.minutes} is no longer than grace={self.grace} seconds: the job would be "
                "ended as it begins"
            )
        return self


class Launch(Section):
    """How the job is started and supervised."""

    launcher: str = Field(
        "auto",
        description="What starts the processes on the hosts: local, ssh, pdsh, openmpi, slurm, or a "
        "plug-in's "
        "name. auto: local for hosts given as `local:`, slurm for `slurm:`, else ssh.",
    )
    python: str | None = Field(
        None, description="Python interpreter on the hosts. Null: the path of the one that runs muster."
    )
    hosts: PositiveInt | Literal["auto"] | None = Field(
        None,
        description="Use only the first so many of the given hosts. auto: the number that trains fastest. "
        "Null: all of them.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="What ranks compute on. auto: GPUs where the hosts have them, else CPUs."
    )
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="Rendezvous port on the first host. Null: a free one."
    )
    address: str | None = Field(
        None, description="Rendezvous address: the first host as the others reach it. Null: found out."
    )
    workdir: str | None = Field(
        None, description="Folder on hosts that do not share the run folder. Null: ~/.cache/muster."
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds after which the whole job is ended. Null: no limit."
    )
    connect_timeout: Annotated[float, Field(gt=0)] = Field(
        20, description="Seconds within which a host must answer the connection."
    )
    lease: Annotated[float, Field(ge=2)] = Field(
        15,
        description="Seconds without a message after which a host counts as lost, and after which a host "
        "that "
        "hears nothing ends its ranks.",
    )
    threads: PositiveInt | None = Field(
        None, description="OMP_NUM_THREADS of each rank. Null: the host's cores divided by its ranks."
    )
    fanout: PositiveInt = Field(64, description="Number of connections that are opened at the same time.")
    home: str | None = Field(
        None,
        description="This machine's address as the hosts reach it (pdsh, openmpi, slurm). Null: found out.",
    )
    setup: str | None = Field(
        None,
        description="A line of bash, or a file to source, that is run on each host before the ranks, which "
        "get its environment: module load cuda; conda activate x.",
    )
    ssh_options: list[str] = Field(
        default_factory=list, description="Arguments of every ssh connection, such as [-F, FILE]."
    )
    options: list[str] = Field(
        default_factory=list, description="Further arguments of pdsh, mpirun, srun or sbatch."
    )
    slurm: Slurm = Field(
        default_factory=Slurm, description="What Slurm is asked for where there is no allocation yet."
    )


# `off` is false in YAML.
_Off = BeforeValidator(lambda value: "off" if value is False else value)


class Hang(Section):
    """When a job without progress is probed, and what happens then."""

    seconds: Annotated[Annotated[float, Field(ge=2)] | Literal["auto", "off"], _Off] = Field(
        "auto",
        description="Seconds without any rank's progress (a step, else a line of output) after which every "
        "host is asked where its ranks stand. auto: 60, or the time of ten steps where that is longer. off: "
        "never.",
    )
    action: Literal["stop", "report"] = Field(
        "stop", description="What follows when the ranks are found to hang: end the job, or only say so."
    )
