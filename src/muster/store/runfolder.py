"""The run folder: every path in it, its state, and the way to find it again."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.errors import RunFolderError, UsageError
from muster.core.near import did_you_mean
from muster.store.atomic import write_text
from muster.store.runlock import Claim, is_held, take

if TYPE_CHECKING:
    from muster.core.recipe import Recipe
    from muster.core.result import Result

DEFAULT_ROOT = Path("runs")
LOCK = "controller.lock"
LAST = ("last", "latest")  # what finds the newest run
_MARKS = ("submission.json", "job.json")  # a folder with one of them is a run's


def from_here(path: Path) -> str:
    """A path as one types it: relative where it lies below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def new_mark() -> str:
    """What tells a run from others of its name on hosts with disks of their own."""
    return os.urandom(4).hex()


def name_elsewhere(name: str, mark: str | None) -> str:
    """What a run's folder is called on hosts that do not see it, where others of its name may have been."""
    return f"{name}-{mark}" if mark else name


def read_object(path: Path) -> dict[str, Any]:
    """One of a folder's JSON files. Raises RunFolderError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise RunFolderError("cannot be read: it is not a JSON object", where=str(path))
    return data


class Inside:
    """A file or a folder in a run's or a bench's folder, by its name there; read, it is the whole path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        path: Path = folder.path
        return path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. Nothing is created until `create`."""

    path: Path

    @property
    def id(self) -> str:
        """The run's name: that of its folder."""
        return self.path.name

    @property
    def word(self) -> str:
        """What names this run to a verb in the current folder: its id, with --runs where that is not the
        default."""
        root = self.path.parent
        if root == DEFAULT_ROOT.absolute():
            return shlex.quote(self.id)
        return f"{shlex.quote(self.id)} --runs {shlex.quote(from_here(root))}"

    @property
    def mark(self) -> str | None:
        """What the run was marked with when it was made; None: not made yet, or before there were marks."""
        try:
            return self._mark.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"cannot be read: {error}", where=str(self._mark)) from None

    @property
    def elsewhere(self) -> str:
        """The name of its folder below `launch.workdir`, on hosts with disks of their own."""
        return name_elsewhere(self.id, self.mark)

    _mark = Inside("mark")
    recipe = Inside("recipe.yaml")  # the recipe as it was resolved, frozen before the launch
    plan = Inside("plan.json")  # decisions with their reasons
    job = Inside("job.json")  # the placement and everything else that was fixed
    # The configuration that the engine gets, and a copy of the user's own: named when one engine had any.
    engine_config = Inside("deepspeed.json")
    engine_config_given = Inside("deepspeed-given.json")
    # The measured peaks of the hosts' devices, out of the document that the recipe named.
    peaks = Inside("peaks.json")
    env = Inside("env.json")  # versions and environment of the controller
    events = Inside("events.jsonl")  # all events of all attempts, in the order of arrival
    result = Inside("result.json")  # written last. Not there: not finished
    logs = Inside("logs")  # one file per host and one per rank
    checkpoints = Inside("checkpoints")  # where hosts that share this folder save to
    model = Inside("model")  # the trained model, in the Hugging Face format
    tensorboard = Inside("tensorboard")  # TensorBoard event files
    # Profiles that were asked for: breakdowns by module and traces, a file per rank.
    profile = Inside("profile")
    report = Inside("report.html")  # the page
    # Held-out questions with the model's answers, one JSON object per line.
    predictions = Inside("predictions.jsonl")
    fabric = Inside("fabric")  # the fabric workload's tables, as CSV files
    controller = Inside("controller.json")  # who supervises this run now
    stop_request = Inside("stop.request")  # `muster stop` creates it; the controller obeys
    room = Inside(".room")  # holds some room on the disk while the job runs, for its result
    # What was handed to a batch system: there before the job is, and the way to find it again.
    submission = Inside("submission.json")
    submitted_recipe = Inside("submitted.yaml")  # the recipe that the batch job reads
    batch_script = Inside("job.sh")  # what the batch system runs
    batch_output = Inside("job.log")  # what the batch job printed

    def host_log(self, host: str) -> Path:
        """What the agent said on a host."""
        return self.logs / f"{_safe(host)}.log"

    def rank_log(self, host: str, rank: int) -> Path:
        """What a rank printed."""
        return self.logs / f"{_safe(host)}.rank{rank}.log"

    def create(self, ticket: str | None = None, mark: str | None = None) -> None:
        """Make the folder. Raises RunFolderError where it is there already or cannot be made.

        `ticket`: of the batch job that this is; a folder that was made for that job is its own.
        `mark`: by which hosts with disks of their own were told to name what they keep of this run.
        """
        try:
            if not self.job.exists() and self.waits_for(ticket):
                self.logs.mkdir(exist_ok=True)  # the job's first start may have died here
            else:
                self.path.mkdir(parents=True, exist_ok=False)
                self.logs.mkdir()
            if mark:
                write_text(self._mark, f"{mark}\n")
        except FileExistsError:
            raise RunFolderError(
                "is already there, and a run never writes over another",
                where=str(self.path),
                hint=f"choose another --name or --output, or `muster resume {self.path}`",
            ) from None
        except OSError as error:
            raise RunFolderError(f"cannot be made: {error.strerror}", where=str(self.path)) from None

    def waits_for(self, ticket: str | None) -> bool:
        """Whether the folder was made for the batch job with this ticket."""
        if ticket is None or not self.submission.is_file():
            return False
        return bool(self.read_json(self.submission).get("ticket") == ticket)

    def claim(self, batch_job: str | None = None) -> Claim:
        """Make this process the run's controller until it ends or gives it back. Raises RunFolderError.

        `batch_job`: the id of the batch system's job that this process belongs to.
        """
        return take(self.path / LOCK, self.controller, self.id, batch_job)

    def controller_alive(self) -> bool | None:
        """Whether a controller works on this run now; None: on another machine, by its signs of life."""
        return is_held(self.path / LOCK, self.controller)

    def read_result(self) -> Result | None:
        """The result, or None where the run is not finished. Raises RunFolderError for a damaged file."""
        from muster.core.result import Result  # pydantic's models take long to load; `muster ls` needs none

        if not self.result.exists():
            return None
        try:
            return Result.model_validate_json(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found = error.errors() if hasattr(error, "errors") else []  # pydantic's, which is not imported
            what = found[0]["msg"] if found else str(error)
            raise RunFolderError(
                f"is damaged: {what}",
                where=str(self.result),
                hint="remove this file: the run then counts as not finished, and its events are still there",
            ) from None

    read_json = staticmethod(read_object)

    def set_result_aside(self) -> None:
        """Keep the last attempt's result under another name: until the new one ends, the run is not
        finished."""
        result = self.read_result()
        if result is not None:
            self.result.replace(self.path / f"result.attempt{result.attempt}.json")

    def state(self) -> str:
        """succeeded, failed, stopped, timeout; running; interrupted (no result and no controller);
        elsewhere; submitted (a batch system has it, and has not begun it), cancelled; damaged (its result, or
        another of its files, cannot be read)."""
        try:
            return self._state()
        except RunFolderError:
            return "damaged"

    def _state(self) -> str:
        if self.result.exists():
            status = self.read_json(self.result).get("status")
            if not isinstance(status, str):
                raise RunFolderError("cannot be read: it has no status", where=str(self.result))
            return status
        if self.submission.is_file() and not self.job.exists():
            return "cancelled" if self.read_json(self.submission).get("cancelled") else "submitted"
        alive = self.controller_alive()
        if alive is None:
            return "elsewhere"
        return "running" if alive else "interrupted"


def new_run_folder(root: Path, *, workload: str, model: str) -> RunFolder:
    """A folder name that sorts by time and says what it is: 20261121-093000-text2sql-t5-small-4f2a."""
    return RunFolder(stamped(root, "", f"{workload}-{model}"))


def stamped(root: Path, kind: str, text: str) -> Path:
    """A folder's name that sorts by time and says what it is."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:40]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (root / f"{stamp}-{kind}{words}-{os.urandom(2).hex()}").absolute()


def run_folder_of(recipe: Recipe, root: Path) -> RunFolder:
    """A new folder, named after what is trained."""
    name = recipe.model.name or ("custom" if recipe.trains else "")
    return new_run_folder(root, workload=recipe.workload, model=name.rstrip("/").rpartition("/")[2])


def named_run_folder(root: Path, name: str) -> RunFolder:
    """The folder of a run that the user has named. Raises UsageError for what no run can be called."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}", name) or name in LAST:
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            where="--name",
            hint=f"{name} means the newest run"
            if name in LAST
            else "at most 63 letters, digits, '.', '-' and '_', a letter or digit first",
        )
    return RunFolder((root / name).absolute())


def find_run(text: str, root: Path = DEFAULT_ROOT) -> RunFolder:
    """A run by path, by id under `root`, by a unique part of its id, or `last`. Raises RunFolderError."""
    try:
        path = Path(text).expanduser()
        if any((path / name).is_file() for name in _MARKS):
            return RunFolder(path.absolute())
        if (path / "schedule.json").is_file():
            raise RunFolderError(
                "is a bench, and not a run",
                where=text,
                hint=f"`muster bench --continue {path}`; its runs: `muster ls --runs {path / 'runs'}`",
            )
    except (OSError, RuntimeError):  # longer than a file name can be; ~nobody
        pass
    runs = list_runs(root)
    if text in LAST and runs:
        return runs[-1]
    matches = [run for run in runs if text == run.id] or [run for run in runs if text in run.id]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunFolderError(f"fits {len(matches)} runs", where=text, hint=f"such as {matches[-1].id}")
    raise RunFolderError(
        "no such run",
        where=text,
        hint=did_you_mean(text, [r.id for r in runs]) or f"`muster ls` lists those in {root}/",
    )


def list_runs(root: Path = DEFAULT_ROOT) -> list[RunFolder]:
    """The runs under `root`, in the order of their (last) start: their names may be of the user's choice."""
    if not root.is_dir():
        return []
    found: dict[Path, int] = {}
    for name in _MARKS:  # the job's own mark is the later one
        for path in root.glob(f"*/{name}"):
            try:
                found[path.parent.absolute()] = path.stat().st_mtime_ns
            except FileNotFoundError:  # deleted just now
                continue
    return [RunFolder(path) for path, _ in sorted(found.items(), key=lambda item: (item[1], item[0]))]


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)
