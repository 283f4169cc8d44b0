"""A command of the user's, as the control side knows it: what it is, and how its ranks are started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from itertools import dropwhile, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from muster.core.data import Data
from muster.core.errors import RecipeError
from muster.core.recipe import DATA, WORKLOAD, Recipe
from muster.core.section import Section
from muster.core.units import counted
from muster.core.workload import Program, Spot
from muster.readers._user import UserFormat

# Runs the words behind it with one more.
_WITH_LOCAL_RANK = ("sh", "-c", 'exec "$@" --local_rank="$LOCAL_RANK"', "sh")
TORCHRUN = ("-m", "torch.distributed.run")
# Launchers by the modules that `python -m` starts.
_MODULES: dict[tuple[str, ...], str] = {
    ("-m", "torch.distributed.run"): "torchrun",
    ("-m", "torch.distributed.launch"): "torchrun",
    ("-m", "accelerate.commands.launch"): "accelerate",
    ("-m", "deepspeed.launcher.runner"): "deepspeed",
}


class Run(Section):
    """How a command is started."""

    start: Literal["torchrun", "rank", "host"] = Field(
        "torchrun",
        description="torchrun: `command` is a Python script with its arguments, or torchrun's options before "
        "these; torchrun starts each host's ranks. rank: the command once per slot, with torchrun's "
        "variables. host: once per host, with those that do not depend on a rank.",
    )
    local_rank: bool = Field(
        False,
        description="Append --local_rank=N to the words of each rank, as DeepSpeed's launcher does. Not with "
        "start=host.",
    )
    names: list[Literal["ompi", "slurm", "pmi"]] = Field(
        default_factory=list,
        description="With start=rank, set a rank's variables by these names as well: those of mpirun (Open "
        "MPI), of srun, of the launcher of MPICH and Intel MPI.",
    )
    workdir: str | None = Field(
        None,
        description="The folder on each host in which the command starts; below the synced folder if that is "
        "given and this is relative. Null: the synced folder, else where muster was started.",
    )
    sync: str | None = Field(
        None,
        description="A folder of code that is brought to every host before the start. What its .gitignore "
        "names stays here, and only what a host lacks is sent.",
    )
    line: str | list[str] | None = Field(
        None,
        description="One or several regular expressions (as `muster judge --line`) that say how lines "
        "tell steps, loss and speed, with groups such as (?P<step>..), (?P<loss>..), (?P<seconds>..), "
        "(?P<samples>..). Null: the formats of docs/judge.md are recognised.",
    )
    speed: Literal["auto", "output", "seconds"] = Field(
        "auto",
        description="By what `muster bench` compares jobs. output: the speed that the output or muster.step "
        "tells. seconds: from start to end, which is right where every run does the same work. auto: the "
        "output where it tells a speed, else seconds.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_metrics(cls, given: Any) -> Any:
        """Recipes that earlier versions froze have a null where a mapping file could be named."""
        if isinstance(given, Mapping) and given.get("metrics", "") is None:
            return {key: value for key, value in given.items() if key != "metrics"}
        return given


# Options of torchrun that Muster sets.
_SET = {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--rdzv-endpoint", "--standalone"}
# Options of Accelerate's launcher that say how many ranks there are and where they meet, or stand for a
# variable; and the same as a host that starts the launcher knows them.
_ACCELERATE = {
    "--num-processes", "--num-machines", "--machine-rank", "--main-process-ip", "--main-process-port",
    "--multi-gpu", "--same-network", "--rdzv-backend", "--mixed-precision",
}  # fmt: skip
_HERE = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $WORLD_SIZE "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
)


def script_of(command: Sequence[str]) -> list[str]:
    """Return a command as torchrun takes it: without a launcher before the script, where that means what
    Muster does anyway. Raises RecipeError, with what to write, where it means more."""
    words = list(command)
    name = os.path.basename(words[0])  # noqa: PTH119 - of the hosts
    if re.fullmatch(r"python[\d.]*", name):
        words = words[2:] if words[1:2] == ["-u"] else words[1:]
        name = _MODULES.get(tuple(words[:2]), name)
        words = words[2:] if tuple(words[:2]) in _MODULES else words
    elif name in ("torchrun", "deepspeed"):
        words = words[1:]
    elif words[:2] == ["accelerate", "launch"]:
        words = words[2:]
    else:
        return words
    begin = _script_at(words)
    options = {word.partition("=")[0].replace("_", "-") for word in words[:begin] if word.startswith("--")}
    own = name == "torchrun" and words and not _SET & options
    if own or words[:1] == ["-m"] or (words and not words[0].startswith("-")):
        return words
    if "-c" in words[:1]:
        raise RecipeError("is no script", where="command", hint=f"--start rank -- {shlex.join(command)}")
    before = command[: len(command) - len(words) + begin]
    if (
        name == "accelerate" and options - _ACCELERATE
    ):  # its own settings reach the ranks by its launcher alone
        line = f"{shlex.join(before)} {_HERE} {shlex.join(words[begin:])}"
        raise RecipeError(
            f"begins with {shlex.join(before)!r}, whose settings only Accelerate's own launcher hands on",
            where="command",
            hint=f"--start host -- bash -c {shlex.quote(line)}",
        )
    precision = dict(pairwise(words[:begin])).get("--mixed_precision")
    kept = f"-e ACCELERATE_MIXED_PRECISION={precision} " if precision and name == "accelerate" else ""
    raise RecipeError(
        f"begins with {shlex.join(before)!r}, and Muster starts the ranks itself",
        where="command",
        hint=f"{kept}-- {shlex.join(words[begin:])}; or --start host, for a command that starts its ranks",
    )


def _script_at(words: Sequence[str]) -> int:
    """Where a launcher's options end: at the script, or at -m and its module; 0: neither is there."""
    ends = (i for i, word in enumerate(words) if word.endswith(".py") or word in ("-m", "--module"))
    return next(ends, 0)


def _script(words: Sequence[str]) -> str | None:
    """Return the file that Python is to run, behind options of torchrun or Python; None: it is not to be
    seen."""
    begin = _script_at(words)
    if (
        not words
        or not words[begin].endswith(".py")
        or {"-c", "--no-python", "--no_python"} & set(words[:begin])
    ):
        return None
    plain = [i for i, word in enumerate(words[:begin]) if not word.startswith("-")]
    values = all(i and words[i - 1].startswith("-") and "=" not in words[i - 1] for i in plain)
    return words[begin] if values else None


def _is_program(word: str) -> bool:
    """Whether a word is a variable, a shell script or a program of this machine, which torchrun would give to
    Python."""
    name = "/" not in word and "." not in word and not word.startswith("-")
    return word.endswith(".sh") or (name and ("=" in word or shutil.which(word) is not None))


class CommandData(Data):
    """A command reads its own data."""


class CommandRecipe(Recipe):
    """Any command: Muster starts it, watches it, reads its progress, and ends all of it together."""

    trains: ClassVar[bool] = False
    foreign: ClassVar[bool] = True
    short: ClassVar[tuple[str, ...]] = ()

    workload: str = Field("command", description=WORKLOAD)
    command: list[str] = Field(
        default_factory=list,
        description="The program and its arguments, word by word; no shell reads them. Use [bash, -c, "
        "'LINE'] for one.",
    )
    run: Run = Field(default_factory=Run, description="How the command is started.")
    data: CommandData = Field(default_factory=CommandData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> None:
        """Whether what this machine must have for it is here. Raises RecipeError."""
        run = self.run
        if not self.command:
            raise RecipeError("is missing: there is nothing to run", where="command")
        if run.start == "torchrun":
            first = (script_of(self.command) or [""])[0]
            if _is_program(first) and not Path(run.sync or run.workdir or ".", first).is_file():
                raise RecipeError(
                    f"begins with {first!r}, and torchrun starts Python scripts",
                    where="command",
                    hint="--start rank starts any command once per slot, --start host once per host; "
                    "a variable is given by -e NAME=VALUE",
                )
        if run.local_rank and run.start == "host":
            raise RecipeError("needs the ranks that run.start=host does not know", where="run.local_rank")
        if run.names and run.start != "rank":
            raise RecipeError(f"needs run.start=rank, and it is {run.start}", where="run.names")
        if run.sync and not Path(run.sync).is_dir():
            raise RecipeError(f"no such folder: {run.sync}", where="run.sync")
        self.user_format()

    def user_format(self) -> UserFormat:
        """How the command's lines are read, where the user says so. Raises UsageError."""
        line = self.run.line or []
        return UserFormat.of([line] if isinstance(line, str) else line, where="run.line")

    def started_in(self, folder: Path) -> CommandRecipe:
        """Return the same where it does not say in which folder it starts."""
        if self.run.sync is not None:
            return self
        place = os.path.abspath(folder / (self.run.workdir or "."))  # noqa: PTH100 - of the hosts
        return self.model_copy(update={"run": self.run.model_copy(update={"workdir": place})})

    def program(self, spot: Spot) -> Program:
        """Return the command as a host starts it."""
        run, words = self.run, tuple(self.command)
        if run.start != "torchrun":
            words = (*_WITH_LOCAL_RANK, *words) if run.local_rank else words
            return Program(words, run.start, names=tuple(run.names))
        before = (
            spot.python,
            *TORCHRUN,
            f"--nnodes={spot.nodes}",
            f"--node-rank={spot.node}",
            f"--nproc-per-node={spot.slots}",
            f"--master-addr={spot.address}",
            f"--master-port={spot.port}",
        )
        script = script_of(words)
        options = " ".join(script[: _script_at(script)])
        processes = re.search(r"--nproc[-_]per[-_]node[ =](\d+)", options)
        asked = int(processes[1]) if processes else spot.slots
        if asked != spot.slots:
            raise RecipeError(
                f"asks for {asked} processes on a host that has {counted(spot.slots, 'slot')}",
                where="command",
                hint=f"leave --nproc-per-node out; HOST:{asked} gives a host {asked} slots",
            )
        if run.local_rank:
            begin = next((i for i, word in enumerate(script) if word == "-m" or word.endswith(".py")), 0)
            own = (spot.python, "-u", *script[begin:])
            script = [*script[:begin], "--no-python", *_WITH_LOCAL_RANK, *own]
        return Program((*before, *script), "host", torchrun=True)

    @property
    def imported(self) -> tuple[str, ...]:
        """torchrun is torch's; any other command brings its own."""
        return ("torch",) if self.run.start == "torchrun" else ()

    def before_start(self, base: str | None = None) -> dict[str, Any]:
        """Return the folder and the program or script that must be there: brought code has them from then
        on."""
        run = self.run
        if run.sync is None:
            folder = os.path.abspath(run.workdir or ".")  # noqa: PTH100 - of the hosts
        elif base is None:
            return {}
        else:
            folder = str(PurePosixPath(base, "code", run.workdir or "."))
        if run.start == "torchrun":
            words = script_of(self.command)
            script = _script(words) if words[0].startswith("-") else words[0]
            return {"cwd": folder, "program": None, "script": script, "module": self._module(words)}
        python = re.fullmatch(r"python[\d.]*", PurePosixPath(self.command[0]).name)
        script = _script(self.command[1:]) if python else None
        module = self._module(self.command[1:]) if python else None
        return {"cwd": folder, "program": self.command[0], "script": script, "module": module}

    @staticmethod
    def _module(words: Sequence[str]) -> str | None:
        """Return the module that Python is to run; None: there is none that could be looked for."""
        rest = list(dropwhile(lambda word: word in ("-u", "-O", "-OO", "-B"), words))
        named = len(rest) > 1 and rest[0] == "-m" and all(part.isidentifier() for part in rest[1].split("."))
        return rest[1] if named else None


RECIPE = CommandRecipe
